"""Networks as ONNX models: what ONNX's reference evaluator computes is what PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from network_models import Attends, Branches, LeNet, Patches, ResNet, Tagger, Twice
from torch import nn

from regatta.errors import UsageError
from regatta.network import KINDS, from_onnx, from_torch, to_onnx, to_torch

onnx = pytest.importorskip("onnx")

IMAGE, ROWS, SEQUENCE = (3, 3, 16, 16), (3, 8), (3, 5, 8)


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.layer(x))


def exported(
    net: nn.Module, *inputs: torch.Tensor
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]], Any]:
    """The outputs of PyTorch, those of the ONNX model, and the model."""
    from onnx.reference import ReferenceEvaluator

    net = net.eval()
    network = from_torch(net, *inputs)
    weights = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    model = to_onnx(network, weights)
    with torch.no_grad():
        wanted = to_torch(network, weights).eval()(*inputs)
    names = [each.name for each in model.graph.input]
    found = ReferenceEvaluator(model).run(None, dict(zip(names, (each.numpy() for each in inputs), strict=True)))
    outputs = wanted if isinstance(wanted, tuple) else (wanted,)
    return [each.numpy() for each in outputs], found, model


def check(net: nn.Module, *inputs: torch.Tensor, tolerance: float = 2e-5) -> Any:
    wanted, found, model = exported(net, *inputs)
    assert len(wanted) == len(found)
    for a, b in zip(wanted, found, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)
    return model


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 4), ROWS),
    "linear on sequences": (lambda: nn.Linear(8, 4, bias=False), SEQUENCE),
    "conv": (lambda: nn.Conv2d(3, 6, 3, stride=2, padding=1, dilation=2, groups=3), IMAGE),
    "conv same": (lambda: nn.Conv2d(3, 4, 4, padding="same", dilation=2), IMAGE),
    "conv reflect": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), IMAGE),
    "conv circular": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), IMAGE),
    "conv 1d": (lambda: nn.Conv1d(5, 4, 3, padding=1), SEQUENCE),
    "conv transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), IMAGE),
    "max pool": (lambda: nn.MaxPool2d(3, 2, padding=1), IMAGE),
    "average pool": (lambda: nn.AvgPool2d(3, 2, padding=1), IMAGE),
    "average pool without padding": (lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), IMAGE),
    "global pool": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "adaptive pool": (lambda: nn.AdaptiveMaxPool2d(4), IMAGE),
    "batch norm": (lambda: nn.BatchNorm2d(3), IMAGE),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), IMAGE),
    "layer norm": (lambda: nn.LayerNorm([5, 8]), SEQUENCE),
    "layer norm without weights": (lambda: nn.LayerNorm(8, elementwise_affine=False), SEQUENCE),
    "group norm": (lambda: nn.GroupNorm(3, 6), (2, 6, 4, 4)),
    "rms norm": (lambda: nn.RMSNorm(8), SEQUENCE),
    "local norm": (lambda: nn.LocalResponseNorm(3), IMAGE),
    "prelu": (lambda: nn.PReLU(3), IMAGE),
    "flatten from 2": (lambda: nn.Flatten(2), IMAGE),
    "flatten to 2": (lambda: nn.Flatten(1, 2), IMAGE),
    "softmax": (lambda: nn.Softmax(1), ROWS),
    "log softmax": (lambda: nn.LogSoftmax(-1), ROWS),
    "pad": (lambda: nn.ConstantPad2d((1, 2, 3, 0), 0.5), IMAGE),
    "pad replicate": (lambda: nn.ReplicationPad2d(2), IMAGE),
    "nearest": (lambda: nn.Upsample(scale_factor=2), IMAGE),
    "bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "bilinear corners": (lambda: nn.Upsample(size=(8, 24), mode="bilinear", align_corners=True), IMAGE),
    **{
        name: (lambda made=made: nn.Sequential(nn.Linear(8, 8), made), ROWS)  # type: ignore[misc]
        for name, made in {
            "relu": nn.ReLU(), "selu": nn.SELU(), "silu": nn.SiLU(), "mish": nn.Mish(), "sigmoid": nn.Sigmoid(),
            "log sigmoid": nn.LogSigmoid(), "hard swish": nn.Hardswish(), "tanh": nn.Tanh(), "softsign": nn.Softsign(),
            "leaky": nn.LeakyReLU(0.2), "elu": nn.ELU(0.5), "celu": nn.CELU(0.7), "gelu": nn.GELU(),
            "gelu tanh": nn.GELU("tanh"), "hard sigmoid": nn.Hardsigmoid(), "softplus": nn.Softplus(2.0),
            "relu6": nn.ReLU6(), "dropout": nn.Dropout(0.5), "identity": nn.Identity(),
        }.items()
    },
}  # fmt: skip

FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "arithmetic": lambda x: (2.0 - x) * x / 3.0 + x**2 - 1.0,
    "maximum": lambda x: torch.maximum(x, -x) + torch.minimum(x, x * 2),
    "math": lambda x: torch.sqrt(torch.abs(x) + 1) + torch.exp(-x) + torch.sin(x) + torch.rsqrt(torch.abs(x) + 1),
    "reduce": lambda x: x.mean(1, keepdim=True) + x.sum(1, keepdim=True),
    "concat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "split": lambda x: x.split([3, 5], 1)[1],
    "chunk": lambda x: x.chunk(2, 1)[0],
    "slice": lambda x: x[:, 1:7:2],
    "last": lambda x: x[:, -1],
    "reshape": lambda x: x.reshape(-1, 2, 4).transpose(1, 2),
    "unsqueeze": lambda x: x.unsqueeze(1).squeeze(1),
    "matmul": lambda x: torch.matmul(x.unsqueeze(2), x.unsqueeze(1)),
    "clamp": lambda x: x.clamp(min=0.1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer(name: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    net = make()
    for buffer in (each for key, each in net.named_buffers() if "running" in key):
        buffer.uniform_(0.5, 1.5)
    check(net, torch.randn(shape))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function(name: str) -> None:
    torch.manual_seed(0)
    check(Calls(FUNCTIONS[name]), torch.randn(ROWS))


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(x)[0]
        return outputs


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": False}, {"bias": False}]
)
def test_recurrent_layers(kind: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    check(Recurrent(kind(8, 6, **{"batch_first": True, **options})), torch.randn(SEQUENCE))


WHOLE: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "LeNet": (LeNet, lambda: torch.randn(2, 1, 28, 28)),
    "ResNet": (lambda: ResNet((1, 1), 4, 10), lambda: torch.randn(2, 3, 32, 32)),
    "Patches": (Patches, lambda: torch.randn(2, 3, 16, 16)),
    "Branches": (Branches, lambda: torch.randn(2, 3, 8, 8)),
    "Tagger": (Tagger, lambda: torch.randint(0, 11, (2, 7))),
    "Twice": (Twice, lambda: torch.randn(2, 8)),
    "Attends": (Attends, lambda: torch.randn(2, 5, 8)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_network(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = WHOLE[name]
    check(make(), inputs())


def test_a_written_file_is_read_as_the_same_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = LeNet().eval()
    example = torch.randn(2, 1, 28, 28)
    model = check(net, example)
    onnx.save(model, tmp_path / "net.onnx")
    again = from_onnx(tmp_path / "net.onnx")
    assert set(again.parameters) == set(net.state_dict())
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    with torch.no_grad():
        torch.testing.assert_close(to_torch(again, weights).eval()(example), net(example))


def test_the_batch_may_have_any_size() -> None:
    from onnx.reference import ReferenceEvaluator

    net = LeNet().eval()
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    model = to_onnx(from_torch(net, torch.randn(2, 1, 28, 28)), weights)
    given = torch.randn(5, 1, 28, 28)
    [found] = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: given.numpy()})
    np.testing.assert_allclose(found, net(given).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_every_kind_is_written_or_refused_by_name() -> None:
    from regatta.network.onnx.to_operators import TRANSLATIONS

    assert set(KINDS) - set(TRANSLATIONS) == {"OTHER"}


def test_layers_that_onnx_lacks_are_named() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Hardshrink())
    weights = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    with pytest.raises(UsageError, match="Hardshrink") as caught:
        to_onnx(from_torch(net, torch.randn(2, 8)), weights)
    assert ".safetensors" in str(caught.value)
