"""PyTorch keeps the contract of a framework, for every kind of state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_models import CLASSES, MODELS, WIDTH, Odd, classify, mlp

from regatta.errors import UsageError
from regatta.frameworks import framework_of, load_framework
from regatta.frameworks.base import Framework
from regatta.frameworks.torch import framework as torch_framework
from regatta.store.states.state_files import read_weights
from regatta.testing.frameworks import FrameworkContract, Setting, Subject, WrongBuilds


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def arrays(rows: int = 20) -> tuple[Any, ...]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(rows, WIDTH)).astype(np.float32), generator.integers(0, CLASSES, rows)


def draw() -> float:
    return torch.rand(()).item()


class TestTorch(FrameworkContract):
    @pytest.fixture(params=MODELS)
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        framework, make = load_framework("torch"), MODELS[request.param]
        setting = Setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64)
        return Subject(framework, make, classify, arrays(), draw, setting=setting)


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = mlp()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def wrong_builds() -> list[tuple[Any, str]]:
    model, optimizer = model_and_optimizer()
    other = torch.optim.SGD(mlp().parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return [
        (None, "model_fn returned None"),
        (nn.Linear, "model_fn returned the class Linear, not one of its objects"),
        ("model", "model_fn returned str"),
        ([model, optimizer], "model_fn returned list"),
        ((), "model_fn returned 0 things"),
        ((model, optimizer, schedule, 1), "model_fn returned 4 things"),
        ((optimizer, model), "model_fn returned SGD, where a torch.nn.Module"),
        ((model, 0.1), r"returned \(module, float\)"),
        ((model, torch.optim.SGD), r"returned \(module, the class SGD"),
        ((model, other), "the module beside it lacks"),
        ((model, optimizer, 0.1), "returned float, where a learning-rate schedule"),
        ((model, optimizer, plateau), "ReduceLROnPlateau waits for a metric"),
        ((model, optimizer, {"batch": schedule}), "every 'step' or every 'epoch', not every 'batch'"),
    ]


class TestWrongTorchBuilds(WrongBuilds):
    @pytest.fixture
    def framework(self) -> Framework:
        return load_framework("torch")

    @pytest.fixture(params=range(13))
    def wrong_build(self, request: pytest.FixtureRequest) -> tuple[Any, str]:
        return wrong_builds()[request.param]

    def test_every_wrong_build_is_tried(self) -> None:
        assert len(wrong_builds()) == 13


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda out: out.mean(1), r"loss_fn returned shape \(20,\); it returns one number"),
        (lambda out: 0.5, "loss_fn returned float; it returns one number"),
        (lambda out: None, "loss_fn returned None"),
        (lambda out: out.mean().detach(), "a loss without a gradient"),
        (lambda out: out.mean().item(), "loss_fn returned float"),
    ],
)
def test_a_wrong_loss_is_a_usage_error(loss: Any, text: str) -> None:
    trainee = torch_framework.assemble(model_and_optimizer(), "cpu")
    data = torch_framework.prepare(arrays(), "cpu")
    with pytest.raises(UsageError, match=text):
        torch_framework.train(trainee, data, [np.arange(20)], lambda m, b, c: loss(m(b[0])), {})


def test_a_loss_may_have_a_dimension_of_one() -> None:
    trainee = torch_framework.assemble(model_and_optimizer(), "cpu")
    data = torch_framework.prepare(arrays(), "cpu")
    loss = torch_framework.train(trainee, data, [np.arange(20)], lambda m, b, c: m(b[0]).mean().reshape(1), {})
    assert isinstance(loss["loss"], float)


def test_data_may_be_a_tensor_a_dict_or_nested() -> None:
    x, y = arrays()
    shapes = {"one": x, "dict": {"x": x, "y": y}, "nested": ((x, x), {"y": y})}
    for data in shapes.values():
        prepared = torch_framework.prepare(data, "cpu")
        assert torch_framework.rows(prepared) == 20
    seen: list[Any] = []

    def loss(model: nn.Module, batch: Any, config: Any) -> torch.Tensor:
        seen.append(batch)
        return model(batch[0][0]).sum() * 0 + batch[1]["y"].float().mean()

    trainee = torch_framework.assemble(model_and_optimizer(), "cpu")
    nested = torch_framework.prepare(shapes["nested"], "cpu")
    torch_framework.train(trainee, nested, [np.array([3, 1])], loss, {})
    assert seen[0][1]["y"].tolist() == y[[3, 1]].tolist()
    assert seen[0][0][1].numpy().tobytes() == x[[3, 1]].tobytes()


def test_arrays_that_cannot_be_shared_are_copied() -> None:
    x, _ = arrays()
    backwards = torch_framework.prepare(x[::-1], "cpu")
    assert backwards.numpy().tobytes() == np.ascontiguousarray(x[::-1]).tobytes()
    x.setflags(write=False)
    assert torch_framework.prepare(x, "cpu").data_ptr() == x.ctypes.data
    words = np.array(["a", "b"])
    assert torch_framework.prepare(words, "cpu") is words


def test_the_optimizer_keeps_its_precision(tmp_path: Path) -> None:
    """torch's own load_state_dict would cast the state to bfloat16."""
    trainee = torch_framework.assemble(MODELS["bfloat16 with float32 state"]({}), "cpu")
    data = torch_framework.prepare(arrays(), "cpu")
    torch_framework.train(trainee, data, [np.arange(20)], classify, {})
    torch_framework.save(trainee, tmp_path / "state")
    fresh = torch_framework.assemble(MODELS["bfloat16 with float32 state"]({}), "cpu")
    torch_framework.restore(fresh, torch_framework.read(tmp_path / "state"))
    assert fresh.optimizer is not None
    masters = [state["master"] for state in fresh.optimizer.state.values()]
    assert masters
    assert all(m.dtype == torch.float32 and not torch.equal(m, m.bfloat16().float()) for m in masters)


def test_tied_weights_are_written_once_and_have_both_names(tmp_path: Path) -> None:
    torch_framework.save(torch_framework.assemble(MODELS["tied"]({}), "cpu"), tmp_path / "state")
    weights = read_weights(tmp_path / "state")
    assert weights["first.weight"].tobytes() == weights["again.weight"].tobytes()
    untied = mlp().append(nn.Linear(WIDTH, WIDTH))
    torch_framework.save(torch_framework.assemble(untied, "cpu"), tmp_path / "more")
    assert (tmp_path / "state").stat().st_size < 2 * WIDTH * WIDTH * 4 + 4096


def test_weights_are_arrays_of_the_same_bits(tmp_path: Path) -> None:
    model = Odd()
    torch_framework.save(torch_framework.assemble(model, "cpu"), tmp_path / "state")
    weights = read_weights(tmp_path / "state")
    assert set(weights) == set(model.state_dict())
    for name, tensor in model.state_dict().items():
        assert weights[name].dtype == tensor.numpy().dtype
        assert weights[name].shape == tuple(tensor.shape)
        assert weights[name].tobytes() == tensor.numpy().tobytes()


def test_bfloat16_weights_are_widened(tmp_path: Path) -> None:
    model = mlp().to(torch.bfloat16)
    torch_framework.save(torch_framework.assemble(model, "cpu"), tmp_path / "state")
    weights = read_weights(tmp_path / "state")
    assert weights["0.weight"].dtype == np.float32
    assert weights["0.weight"].tobytes() == model[0].weight.detach().float().numpy().tobytes()


def test_state_that_cannot_be_saved_is_named() -> None:
    model, optimizer = model_and_optimizer()
    optimizer.state[model[0].weight]["when"] = {"hook": len}
    with pytest.raises(UsageError, match="optimizer/state/0/when/hook holds a builtin_function_or_method"):
        torch_framework.save(torch_framework.TorchTrainee(model, optimizer), Path("unused"))


@pytest.mark.parametrize("tensor", [torch.zeros(2, dtype=torch.complex128), torch.eye(2).to_sparse()])
def test_tensors_that_cannot_be_saved_are_named(tensor: torch.Tensor, tmp_path: Path) -> None:
    model = mlp()
    model.register_buffer("strange", tensor)
    with pytest.raises(UsageError, match=r"model/strange is a tensor of .* which cannot travel"):
        torch_framework.save(torch_framework.assemble(model, "cpu"), tmp_path / "state")


def test_views_are_saved_with_their_own_elements(tmp_path: Path) -> None:
    model = mlp()
    turned = torch.tensor([1 + 2j, 3 - 4j])
    views = {
        "conjugate": turned.conj(),
        "negated": turned.conj().imag,
        "transposed": torch.arange(6.0).view(2, 3).T,
        "expanded": torch.ones(1).expand(3),
        "part": torch.arange(6.0)[2:4],
    }
    for name, view in views.items():
        model.register_buffer(name, view)
    torch_framework.save(torch_framework.assemble(model, "cpu"), tmp_path / "state")
    weights = read_weights(tmp_path / "state")
    assert {name: weights[name].tolist() for name in views} == {name: view.tolist() for name, view in views.items()}


def test_evaluation_restores_the_mode_of_every_module() -> None:
    model = mlp(nn.BatchNorm1d(8), nn.Dropout())
    model[2].eval()  # a frozen normalisation
    trainee = torch_framework.assemble(model, "cpu")
    with pytest.raises(ZeroDivisionError), torch_framework.evaluating(trainee):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        raise ZeroDivisionError
    assert [module.training for module in model] == [True, True, False, True, True]
    assert torch.is_grad_enabled()


def test_framework_of_recognizes_torch() -> None:
    assert framework_of(mlp()) is torch_framework
    assert framework_of(model_and_optimizer()) is torch_framework
    for built, text in ((None, "None .is a `return` missing"), (nn.Linear, "the class Linear"), (3, "int")):
        with pytest.raises(UsageError, match=f"model_fn returned {text}"):
            framework_of(built)
