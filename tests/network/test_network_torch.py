"""PyTorch modules as networks, and networks as modules that compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from network_models import Attends, Branches, Decides, LeNet, Patches, ResNet, Tagger, Twice
from torch import Tensor, nn

from regatta.errors import DataError, UsageError
from regatta.network import Network, from_json, from_torch, load_weights, structural_hash, to_json, to_torch
from regatta.network.torch.traces import trace_example, trace_exported, trace_symbolic


def state(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}


def kinds(network: Network) -> list[str]:
    return [node.kind for node in network.nodes]


def same_outputs(module: nn.Module, network: Network, *inputs: Tensor, exact: bool = True) -> None:
    """The network, through its JSON, as a module with the same weights, computes the very same numbers.

    Attention that is taken apart does not: evaluated, PyTorch's own layer is one fused operator.
    """
    again = to_torch(from_json(to_json(network)), state(module))
    module.eval(), again.eval()
    with torch.no_grad():
        expected, got = module(*inputs), again(*inputs)
    expected, got = (x if isinstance(x, tuple) else (x,) for x in (expected, got))
    assert len(expected) == len(got)
    for x, y in zip(expected, got, strict=True):
        assert torch.equal(x, y) if exact else torch.allclose(x, y, rtol=1e-4, atol=1e-5)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "LeNet": (LeNet, lambda n: torch.randn(n, 1, 28, 28)),
    "ResNet": (lambda: ResNet((2, 1), width=4, outputs=5), lambda n: torch.randn(n, 3, 33, 33)),
    "Patches": (Patches, lambda n: torch.randn(n, 3, 16, 16)),
    "Branches": (Branches, lambda n: torch.randn(n, 3, 8, 8)),
    "Tagger": (Tagger, lambda n: torch.randint(0, 11, (n, 7))),
    "Twice": (Twice, lambda n: torch.randn(n, 8)),
    "Attends": (Attends, lambda n: torch.randn(n, 5, 8)),
    "Encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda n: torch.randn(n, 5, 8)),
    "Layer": (lambda: nn.Linear(3, 2), lambda n: torch.randn(n, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_module_to_network_to_module_gives_the_same_outputs_for_any_batch(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    module = make()
    network = from_torch(module, inputs(2))
    assert "OTHER" not in kinds(network)
    for batch in (2, 5):
        same_outputs(module, network, inputs(batch), exact=name != "Encoder")


@pytest.mark.parametrize("name", ["LeNet", "ResNet", "Branches", "Twice"])
def test_all_three_readers_find_the_same_network(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    module, example = make(), (inputs(3),)
    found = [trace(module, example, "") for trace in (trace_symbolic, trace_example, trace_exported)]
    alike = found[:2] if name == "Branches" else found  # torch.export slices one axis at a time
    assert len({structural_hash(network) for network in alike}) == 1
    for network in found:
        same_outputs(module, network, inputs(2))


@pytest.mark.parametrize("trace", [trace_exported, trace_example])
@pytest.mark.parametrize("name", ["Patches", "Tagger", "Attends", "Encoder"])
def test_hard_models_are_read_completely_by_the_other_readers(name: str, trace: Callable[..., Network]) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    module = make()
    network = trace(module, (inputs(2),), "")
    assert set(network.parameters) <= set(state(module))
    if "OTHER" not in kinds(network):
        same_outputs(module, network, inputs(2), exact=name not in ("Attends", "Encoder"))
    else:
        assert (name, trace) == ("Tagger", trace_exported)  # an trace_exported LSTM is one operator with eight weights


def test_no_input_is_needed_without_control_flow_on_values() -> None:
    module = LeNet()
    network = from_torch(module)
    assert structural_hash(network) == structural_hash(from_torch(module, torch.randn(2, 1, 28, 28)))
    assert network.find("conv2").shape == (None, 50, None, None)
    same_outputs(module, network, torch.randn(4, 1, 28, 28))


def test_shapes_come_from_the_example_without_its_batch() -> None:
    network = from_torch(LeNet(), torch.randn(1, 1, 28, 28))
    shapes = [node.shape for node in network.nodes if node.kind in ("INPUT", "CONV", "POOL", "FULL")]
    assert shapes == [
        (None, 1, 28, 28), (None, 20, 24, 24), (None, 20, 12, 12), (None, 50, 8, 8), (None, 50, 4, 4), (None, 500),
        (None, 10),
    ]  # fmt: skip


def test_a_module_with_control_flow_on_values_is_traced() -> None:
    torch.manual_seed(0)
    module = Decides()
    with pytest.raises(UsageError, match="without an input"):
        from_torch(module)
    big, small = torch.ones(2, 4), torch.zeros(2, 4)
    network = from_torch(module, big)
    assert kinds(network) == ["INPUT", "FULL", "RELU", "FULL", "RESHAPE", "MUL", "SOFTMAX", "OUTPUT"]
    assert kinds(from_torch(module, small)) == ["INPUT", "FULL", "OUTPUT"]
    same_outputs(module, network, torch.full((3, 4), 2.0))


def test_reading_does_not_change_the_module() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
    module[2].eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    modes, random = [part.training for part in module.modules()], torch.random.get_rng_state()
    for trace in (trace_symbolic, trace_exported, trace_example):
        trace(module, (torch.randn(2, 4, generator=torch.Generator().manual_seed(1)),), "")
    assert [part.training for part in module.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_a_subclass_of_a_layer_is_read_as_its_parts() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight * 2, self.bias)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Doubled(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    network = from_torch(Model(), torch.randn(2, 3))
    assert "FULL" not in kinds(network)  # the weight is computed: no layer of the vocabulary does that
    assert "MUL" in kinds(network)


def test_nodes_that_cannot_be_built_are_named() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(x).real

    network = from_torch(Odd(), torch.randn(2, 4))
    with pytest.raises(UsageError, match="fft_fft"):
        to_torch(network)


def test_weights_that_do_not_fit_are_named() -> None:
    module = LeNet()
    network = from_torch(module)
    weights = state(module)
    wrong = {**weights, "fc2.bias": torch.zeros(11)}
    with pytest.raises(DataError, match=r"fc2\.bias.*\(11,\)"):
        to_torch(network, wrong)
    missing = {name: tensor for name, tensor in weights.items() if name != "conv1.weight"}
    with pytest.raises(DataError, match=r"conv1\.weight"):
        to_torch(network, missing)


def test_weights_may_be_loaded_later_and_keep_their_type() -> None:
    module = LeNet().double()
    again = to_torch(from_torch(module))
    load_weights(again, {name: tensor.detach().numpy() for name, tensor in state(module).items()})
    x = torch.randn(2, 1, 28, 28, dtype=torch.float64)
    assert torch.equal(module(x), again(x))


def test_shared_weights_stay_shared() -> None:
    module = Tagger()
    again = to_torch(from_torch(module, torch.randint(0, 11, (2, 5))), state(module))
    count = sum(parameter.numel() for parameter in again.parameters())
    assert count == sum(parameter.numel() for parameter in module.parameters())
    twice = to_torch(from_torch(Twice(), torch.randn(2, 8)))
    assert sum(parameter.numel() for parameter in twice.parameters()) == 8 * 8 + 8 + 16


def test_a_rebuilt_module_trains_like_the_original() -> None:
    torch.manual_seed(0)
    module = Twice()
    again = to_torch(from_torch(module, torch.randn(4, 8)), state(module))
    x = torch.randn(6, 8)
    for _ in range(2):
        for net in (module, again):
            net.train()
            net.zero_grad()
            net(x).square().sum().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.01 * parameter.grad
    module.eval(), again.eval()
    torch.testing.assert_close(module(x), again(x), rtol=1e-5, atol=1e-5)


def test_a_slice_can_be_run() -> None:
    torch.manual_seed(0)
    module = ResNet((2,), width=4, outputs=5)
    x = torch.randn(2, 3, 33, 33)
    network = from_torch(module, x)
    cut = network.slice("stages.1.conv1", "stages.1.relu_2")
    again = to_torch(cut, state(module)).eval()
    module.eval()
    with torch.no_grad():
        before = module.stages[0](module.maxpool(module.relu(module.bn1(module.conv1(x)))))
        assert len(cut.inputs) == 1
        assert torch.equal(again(before), module.stages[1](before))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match=r"torch\.nn\.Module"):
        from_torch("LeNet")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="tensor"):
        from_torch(LeNet(), [1, 2])
    with pytest.raises(UsageError, match="takes 1 inputs, not 2"):
        to_torch(from_torch(nn.Linear(2, 2)))(torch.zeros(1, 2), torch.zeros(1, 2))


@pytest.mark.parametrize(
    "module",
    [
        nn.AvgPool2d(2, divisor_override=3),
        nn.Embedding(9, 4, max_norm=1.0),
        nn.MultiheadAttention(4, 2, add_zero_attn=True),
    ],
    ids=lambda module: type(module).__name__,
)
def test_layers_with_settings_unknown_to_their_kind_are_other(module: nn.Module) -> None:
    from regatta.network.torch.modules import describe_layer

    kind, attributes = describe_layer(module)
    assert (kind, attributes["type"]) == ("OTHER", type(module).__name__)
