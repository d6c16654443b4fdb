"""Shapes inferred from the inputs are those that the framework computes; layers that do not fit are named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from network_models import AlexNet, Attends, Branches, LeNet, Patches, ResNet, Tagger, Twice
from torch import nn

from regatta.network import from_torch, to_torch
from regatta.network.graph import Network, Node
from regatta.network.shapes import ShapeError, infer_shapes

MODELS = {
    "lenet": (LeNet(), torch.zeros(2, 1, 28, 28)),
    "alexnet": (AlexNet(), torch.zeros(2, 3, 224, 224)),
    "resnet": (ResNet((1, 1), 8, 5), torch.zeros(2, 3, 32, 32)),
    "patches": (Patches(), torch.zeros(2, 3, 16, 16)),
    "branches": (Branches(), torch.zeros(2, 3, 9, 9)),
    "tagger": (Tagger(), torch.zeros(2, 7, dtype=torch.int64)),
    "twice": (Twice(), torch.zeros(2, 8)),
    "attends": (Attends(), torch.zeros(2, 5, 8)),
}


def forgotten(network: Network) -> Network:
    """The network without the shapes of anything but its inputs."""
    nodes = [node if node.kind == "INPUT" else replace(node, shape=None) for node in network.nodes]
    return replace(network, nodes=tuple(nodes))


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_those_of_the_framework(name: str) -> None:
    model, example = MODELS[name]
    network = from_torch(model.eval(), example)
    found = infer_shapes(forgotten(network))
    known = {node.id: node.shape for node in network.nodes if node.shape is not None}
    assert len(known) > len(network) / 2
    assert {id: found.by_id[id].shape for id in known} == known


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_those_of_every_layer_as_it_runs(name: str) -> None:
    model, example = MODELS[name]
    network = infer_shapes(forgotten(from_torch(model.eval(), example)))
    module, seen = to_torch(network, dict(model.state_dict())).eval(), {}
    steps = [id for id in network.order if network.by_id[id].kind != "INPUT"]
    for id, part in zip(steps, module.parts, strict=True):
        part.register_forward_hook(lambda part, given, result, id=id: seen.__setitem__(id, result))
    with torch.no_grad():
        module(torch.cat([example, example[:1]]))  # three samples: an axis of that size is the batch
    for id, result in seen.items():
        shape = network.by_id[id].shape
        if isinstance(result, torch.Tensor):
            assert shape is not None, id
            assert len(shape) == result.dim(), id
            assert all(s in (None, r) for s, r in zip(shape, result.shape, strict=True)), id


WINDOWS = [
    nn.Conv2d(3, 4, 3, stride=2, padding=1, dilation=2), nn.Conv2d(3, 4, (3, 5), padding="same"),
    nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    nn.MaxPool2d(2, 3, ceil_mode=True), nn.AvgPool2d(3, 2, 1, ceil_mode=True), nn.AdaptiveAvgPool2d((2, None)),
    nn.MaxPool2d(3, 1, 1, dilation=2),
]  # fmt: skip


@pytest.mark.parametrize("layer", WINDOWS, ids=str)
@pytest.mark.parametrize("size", range(5, 13))
def test_windows_fit_as_often_as_in_the_framework(layer: nn.Module, size: int) -> None:
    example = torch.zeros(2, 3, size, size + 1)
    network = infer_shapes(forgotten(from_torch(nn.Sequential(layer), example)))
    assert network.nodes[1].shape == (None, *layer(example).shape[1:])


def test_a_layer_that_does_not_fit_is_named_with_both_shapes() -> None:
    network = from_torch(LeNet(), torch.zeros(1, 1, 28, 28))
    wider = [replace(n, shape=(None, 1, 32, 32)) if n.kind == "INPUT" else n for n in network.nodes]
    with pytest.raises(ShapeError, match=r"FULL 'fc1' takes 800 features, not 1250; its input is .* \(\?, 1250\)"):
        infer_shapes(replace(network, nodes=tuple(wider)))


def test_windows_larger_than_the_input_are_refused() -> None:
    network = from_torch(LeNet(), torch.zeros(1, 1, 28, 28))
    small = [replace(n, shape=(None, 1, 4, 4)) if n.kind == "INPUT" else n for n in network.nodes]
    with pytest.raises(ShapeError, match="CONV 'conv1' has windows of 5, larger than 4"):
        infer_shapes(replace(network, nodes=tuple(small)))


def test_layers_of_other_frameworks_keep_the_shape_that_is_known() -> None:
    network = Network((Node("a", "INPUT", shape=(None, 3)), Node("b", "OTHER", shape=(None, 9))), ())
    assert infer_shapes(network).by_id["b"].shape == (None, 9)
