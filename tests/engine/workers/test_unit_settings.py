"""A model that leaves settings of the whole process behind does not change what other models compute."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes import CLASSES, WIDTH, small_data
from torch import nn
from torch.nn.utils import parametrize
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.frameworks.settings import KeptSettings, keep, process_settings
from regatta.frameworks.torch.settings import settings

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = {"batch_size": 5, "lr": 0.05}
left_entered: list[Any] = []  # scopes that are entered and never left


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is nn.functional.linear else result


class Negating(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return -result if func is torch.ops.aten.tanh.default else result


def enter(scope: Any) -> None:
    left_entered.append(scope)
    scope.__enter__()


def scale_gradients(optimizer: Any, *arguments: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad *= 0.5


# What a model may leave behind, by name. Those of the first table change the bits of the model below.
LEFT_BEHIND: dict[str, Callable[[], object]] = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "function mode": lambda: enter(Doubling()),
    "device scope": lambda: enter(torch.device("meta")),
    "dispatch mode": lambda: enter(Negating()),
    "two modes": lambda: (enter(Doubling()), enter(Negating()), torch.set_default_device("meta")),
    "autocast": lambda: enter(torch.autocast("cpu", dtype=torch.bfloat16)),
    "no gradients": lambda: torch.set_grad_enabled(False),
    "inference mode": lambda: enter(torch.inference_mode()),
    "saved tensors": lambda: enter(torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t)),
    "flushed denormals": lambda: torch.set_flush_denormal(True),
    "forward hook": lambda: nn.modules.module.register_module_forward_hook(lambda module, x, out: out * 2),
    "forward hook with keywords": lambda: nn.modules.module.register_module_forward_hook(
        lambda module, x, keywords, out: out * 2, with_kwargs=True
    ),
    "backward hook": lambda: nn.modules.module.register_module_full_backward_hook(
        lambda module, inner, outer: tuple(None if part is None else part * 2 for part in inner)
    ),
    "parameter hook": lambda: nn.modules.module.register_module_parameter_registration_hook(
        lambda module, name, parameter: nn.Parameter(parameter.detach() * 2)
    ),
    "optimizer hook": lambda: register_optimizer_step_pre_hook(scale_gradients),
    "cached parametrizations": lambda: enter(parametrize.cached()),
}
UNSEEN_LEFT_BEHIND: dict[str, Callable[[], object]] = {
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "deterministic, warning": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "threads": lambda: torch.set_num_threads(2),
    "matmul precision": lambda: torch.set_float32_matmul_precision("medium"),
    "precision of mkldnn": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "precision of all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "mkldnn": lambda: torch.backends.mkldnn.set_flags(False),
    "cudnn": lambda: torch.backends.cudnn.set_flags(False, True, 3, True, False),
    "attention": lambda: torch.backends.cuda.enable_math_sdp(False),
    "order of attention": lambda: torch._C._set_sdp_priority_order([2, 1, 0]),
    "matmul reductions": lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
    "einsum": lambda: torch.backends.opt_einsum.set_flags(False, None),
    "attention fastpath": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "swapped parameters": lambda: torch.__future__.set_swap_module_params_on_conversion(True),
    "NumPy errors": lambda: np.seterr(all="raise"),
    "working folder": lambda: os.chdir("/"),
    "seeds": lambda: (random.seed(1), np.random.seed(1), torch.manual_seed(1)),
}
ALL = LEFT_BEHIND | UNSEEN_LEFT_BEHIND
PLACES = ("model_fn", "loss_fn", "hook", "eval_fn")


class Sensitive(nn.Module):
    """Depends on default types and devices, on gradients, denormal numbers, parametrizations, and hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 8)
        self.last = nn.Linear(8, CLASSES)
        parametrize.register_parametrization(self.first, "weight", nn.Hardtanh())
        self.register_buffer("tiny", torch.full((), 1e-42))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x)) + 1e-3 * torch.randn(8)
        return self.last(hidden + (self.tiny * 0.5) * 1e38 * 100)


def model_fn(config: dict[str, Any]) -> Any:
    model = Sensitive()
    leave(config, "model_fn")
    if config.get("place") == "hook":
        model.first.register_forward_hook(lambda *arguments: leave(config, "hook"))
    return model, torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    x, y = batch
    loss = nn.functional.cross_entropy(model(x), y)
    leave(config, "loss_fn")
    return loss


def eval_fn(data: Any, model: Any, config: dict[str, Any]) -> dict[str, float]:
    x, y = data
    correct = float((model(x).argmax(1) == y).float().mean())
    leave(config, "eval_fn")
    return {"accuracy": correct}


def leave(config: dict[str, Any], place: str) -> None:
    if config.get("place") == place:
        ALL[config["leaves"]]()


@pytest.fixture(autouse=True)
def clean_process() -> Iterator[None]:
    """Whatever a test leaves behind stays in it, also what its scopes change when they are deleted."""
    with keep([*process_settings(), *settings()]) as found:
        yield
        changed = found.changed()
        left_entered.clear()
        gc.collect()
    assert not changed


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"), proportions=(1,), eval_partitions=1)


@pytest.fixture(scope="module")
def clean(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcome(launched(data, [SIZE], tmp_path_factory.mktemp("clean")))


def launched(data: Dataset, configs: list[dict[str, Any]], repo: Path, **options: Any) -> Run:
    options = {"cluster": Cluster.inline(1), "pack": False, **options}
    sweep = Sweep(
        data, search.configs(configs), model_fn, loss_fn=loss_fn, eval_fn=eval_fn, epochs=2, repo=repo, **options
    )
    return sweep.launch(progress=False)


def outcome(run: Run) -> dict[str, Any]:
    """The bits of the weights and of all metrics of the model that leaves nothing behind."""
    config = run.find(SIZE)
    assert config.error is None
    weights = {name: array.tobytes() for name, array in run.weights(SIZE).items()}
    return {**weights, "metrics": [sorted(unit.metrics.items()) for unit in config.units]}


@pytest.mark.parametrize("name", ALL)
def test_the_next_model_gets_the_bits_of_a_clean_process(
    data: Dataset, clean: dict[str, Any], tmp_path: Path, name: str
) -> None:
    place = PLACES[list(ALL).index(name) % len(PLACES)]
    leaver = {**SIZE, "leaves": name, "place": place}
    assert outcome(launched(data, [leaver, SIZE], tmp_path)) == clean


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ALL)
def test_whatever_place_leaves_it_behind(
    data: Dataset, clean: dict[str, Any], tmp_path: Path, name: str, place: str
) -> None:
    leaver = {**SIZE, "leaves": name, "place": place}
    assert outcome(launched(data, [leaver, SIZE], tmp_path)) == clean


@pytest.mark.parametrize("place", ["model_fn", "loss_fn", "hook"])
@pytest.mark.parametrize("name", ["function mode", "forward hook", "flushed denormals"])
def test_the_members_of_a_pack_do_not_share_it(
    data: Dataset, clean: dict[str, Any], tmp_path: Path, name: str, place: str
) -> None:
    leavers = [{**SIZE, "leaves": name, "place": place, "seed": seed} for seed in (1, 2)]
    together = launched(data, [leavers[0], SIZE, leavers[1]], tmp_path / "pack", pack=True)
    assert any(unit.pack for unit in together.record.units)
    assert outcome(together) == clean
    alone = launched(data, leavers[:1], tmp_path / "alone")
    assert together.find(leavers[0]).error == alone.find(leavers[0]).error
    hashes = [[unit.hash for unit in run.find(leavers[0]).units] for run in (together, alone)]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_the_model_of_these_tests_notices(name: str) -> None:
    """Otherwise the tests above would prove nothing."""

    def bits(leave_behind: Callable[[], object]) -> object:
        with keep(settings()):
            torch.manual_seed(0)
            leave_behind()
            try:
                model, optimizer = model_fn(SIZE)
                for _ in range(2):
                    loss_fn(model, (torch.ones(4, WIDTH), torch.arange(4) % CLASSES), SIZE).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                found = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
                return found, model(torch.ones(4, WIDTH)).detach().numpy().tobytes()
            except Exception as error:  # noqa: BLE001 (it cannot be trained at all)
                return error

    assert bits(lambda: None) == bits(lambda: None)
    assert bits(ALL[name]) != bits(lambda: None)


def test_settings_in_their_order() -> None:
    """Settings that others depend on are put back first."""
    before = KeptSettings([*process_settings(), *settings()])
    with before.restored():
        for name, leave_behind in ALL.items():
            if name not in ("device scope", "two modes"):  # PyTorch has one default device at a time
                leave_behind()
        assert len(before.changed()) > 15
        with before.restored():
            assert not before.changed()
        assert len(before.changed()) > 15
    assert not before.changed()
