"""Layers that are made: what PyTorch would refuse is found before, and wrong hyperparameters are errors of ours."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from network_models import AlexNet, Branches, LeNet, Patches, ResNet, Tagger
from torch import nn

from regatta.errors import DataError, RegattaError, UsageError
from regatta.network import KINDS, Edge, Network, Node, from_torch, to_torch
from regatta.network.mutate import LayerTemplate, insert, replace_layer, set_attributes
from regatta.network.torch.initialise import initial_weights
from regatta.network.torch.to_torch import weights_of
from regatta.network.torch.trial_run import TrialRun, first_failure

LENET = from_torch(LeNet(), torch.zeros(2, 1, 28, 28))
TOKENS = from_torch(
    nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), torch.zeros(2, 5, 6)
)  # fmt: skip
VALUES: dict[str, Any] = {
    "int": (-3, -1, 0, 1, 2, 3, 6, 10**12), "number": (0.0, -1.5, 2, 0.5, 1e300), "bool": (True, False),
    "text": ("max", "avg", "batch", "layer", "group", "instance", "local", "rms", "lstm", "mean", "erf", "foo", "same"),
    "ints": ((), (1,), (2, 2), (0, -1, 3), 3, 10**12, "same"), "any": (3, "a", (1, 2), None, ((1,), 2), 0.5),
}  # fmt: skip


def some_attributes(rng: random.Random, kind: str) -> dict[str, Any]:
    return {name: rng.choice(VALUES[type_]) for name, type_ in KINDS[kind].types.items() if rng.random() < 0.4}


@pytest.mark.parametrize("seed", range(6))
def test_any_template_makes_a_network_that_runs_or_an_error_of_ours(seed: int) -> None:
    rng, runs = random.Random(seed), 0
    trial = TrialRun()
    kinds = [kind for kind in KINDS if kind not in ("INPUT", "OUTPUT")]
    for _ in range(150):
        network = rng.choice((LENET, TOKENS))
        node = rng.choice([node for node in network.nodes if node.kind != "OUTPUT"])
        kind, fit = rng.choice(kinds), rng.random() < 0.5
        template = LayerTemplate(kind, some_attributes(rng, kind))
        try:
            match rng.randrange(3):
                case 0:
                    made = insert(network, node.id, template, fit=fit)
                case 1:
                    made = replace_layer(network, node.id, template, fit=fit)
                case _:
                    made = set_attributes(network, node.id, some_attributes(rng, node.kind), fit=fit)
        except RegattaError:
            continue
        runs += trial.first_failure(made.network) is None
    assert runs > 20


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (LayerTemplate("POOL", {"function": "max"}), "needs kernel or output"),
        (LayerTemplate("SPLIT"), "needs count or size or sizes"),
        (LayerTemplate("SELECT"), "needs item"),
        (LayerTemplate("MATMUL"), "needs several inputs"),
        (LayerTemplate("CONV", {"kernel": 3, "dims": 10**12}), "'dims' is 1000000000000, not a number from 1 to"),
        (LayerTemplate("CONV", {"kernel": (3,), "padding": "same", "dilation": (1, 2)}), "padding='same' has no size"),
        (LayerTemplate("CONV", {"kernel": 3, "groups": 7}), "cannot be built"),
        (LayerTemplate("POOL", {"function": "max", "kernel": 2, "stride": 0}), "cannot be computed with"),
    ],
)
def test_wrong_templates(template: LayerTemplate, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        insert(LENET, "conv1", template)


def test_a_split_into_too_many_parts_is_refused() -> None:
    nodes = Node("x", "INPUT", shape=(None, 10**12)), Node("i", "IDENTITY"), Node("y", "OUTPUT")
    wide = Network(nodes, (Edge("x", "i"), Edge("i", "y")))
    with pytest.raises(UsageError, match="makes more than 100,000 parts"):
        insert(wide, "i", LayerTemplate("SPLIT", {"axis": 1, "size": 1}))


def test_dims_of_a_network_that_was_read_are_limited() -> None:
    with pytest.raises(DataError, match="'dims' is"):
        Node("c", "CONV", attributes={"dims": 10**9, "kernel": [3]})


EXAMPLES = [
    (LeNet(), torch.zeros(2, 1, 28, 28)), (AlexNet(), torch.zeros(2, 3, 224, 224)),
    (ResNet((1, 1), 4, 5), torch.zeros(2, 3, 32, 32)), (Patches(), torch.zeros(2, 3, 16, 16)),
    (Branches(), torch.zeros(2, 3, 9, 9)), (Tagger(), torch.zeros(2, 7, dtype=torch.int64)),
]  # fmt: skip


@pytest.mark.parametrize(("model", "example"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_networks_that_run_have_no_failure(model: nn.Module, example: torch.Tensor) -> None:
    assert first_failure(from_torch(model.eval(), example)) is None


def test_the_layer_that_fails_is_named() -> None:
    made = insert(LENET, "conv2", LayerTemplate("POOL", {"function": "max", "kernel": 2, "padding": 2}), fit=True)
    said = first_failure(made.network)
    assert said is not None and said.startswith("POOL 'pool' does not take (2, 50, 8, 8): pad should be at most half")
    module = to_torch(made.network)
    with pytest.raises(RuntimeError, match="pad should be at most half"):
        module(torch.zeros(2, 1, 28, 28))


@pytest.mark.parametrize(("model", "example"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_single_layers_are_initialised_as_in_the_whole_network(model: nn.Module, example: torch.Tensor) -> None:
    network = from_torch(model.eval(), example)
    whole = weights_of(to_torch(network, seed=5))
    assert {name: t.shape for name, t in whole.items()} == {
        n: t.shape for n, t in initial_weights(network, whole, 5).items()
    }
    for name, tensor in list(whole.items())[:6]:
        (found,) = initial_weights(network, [name], 5).values()
        assert torch.equal(found, tensor), name
