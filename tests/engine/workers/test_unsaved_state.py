"""State that models keep outside their state_dict: it is found, and does not go from unit to unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recipes import WIDTH, small_data
from torch import nn

from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.engine.workers.training.unsaved_state import unsaved_state

pytestmark = pytest.mark.usefixtures("one_thread")
RATES = [0.1, 0.05, 0.02, 0.01]


class StatefulNet(nn.Module):
    """Computes with a value outside its state, which changes with every step."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(WIDTH, 3), kind
        self._steps, self.seen, self.mean = 0, [], torch.zeros(3)  # type: ignore[var-annotated]
        hooked = {"steps": 0}

        def hook(module: nn.Module, given: Any, found: torch.Tensor) -> torch.Tensor:
            hooked["steps"] += module.training
            return found * (1 + 0.01 * hooked["steps"])

        if kind == "hook":
            self.layer.register_forward_hook(hook)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        if self.training and self.kind == "private":
            self._steps += 1
        if self.training and self.kind == "list":
            self.seen.append(1)
        if self.training and self.kind == "tensor":
            self.mean = 0.9 * self.mean + 0.1 * found.detach().mean(0)
        return found * (1 + 0.01 * (self._steps + len(self.seen))) + self.mean


def model_fn(config: dict[str, Any]) -> Any:
    kind = config.get("unsaved")
    net = StatefulNet(kind) if kind else nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 3))
    return net, torch.optim.Adam(net.parameters(), lr=config["lr"])


def loss_fn(model: nn.Module, batch: Any, config: dict[str, Any]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def launch_pack(data: Dataset, space: Any, repo: Path, pack: bool, **options: Any) -> Run:
    options = {"epochs": 3, "cluster": Cluster(workers=1, kind="inline"), **options}
    sweep = Sweep(data, space, model_fn, loss_fn=loss_fn, repo=repo, pack=pack, **options)
    return sweep.launch(progress=False, resume=False)


def hashes(run: Run) -> dict[tuple[str, int, int], str | None]:
    return {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"), rows=90, proportions=(1,))


@pytest.mark.parametrize("unsaved", ["private", "list", "tensor", "hook"])
def test_unsaved_state_does_not_go_from_unit_to_unit(whole: Dataset, tmp_path: Path, unsaved: str) -> None:
    space = search.grid(lr=RATES[:3], batch_size=[7], unsaved=[unsaved])
    alone, together = (launch_pack(whole, space, tmp_path, pack, epochs=2) for pack in (False, True))
    assert {unit.pack for unit in together.record.units if unit.kind == "train"} == {"pack-1"}
    assert hashes(together) == hashes(alone)


def test_a_plain_model_changes_only_its_state() -> None:
    net, optimizer = model_fn({"lr": 0.1})
    before = unsaved_state(net)
    loss_fn(net, (torch.zeros(4, WIDTH), torch.zeros(4, dtype=torch.int64)), {}).backward()
    optimizer.step()
    assert unsaved_state(net) == before
    net.register_buffer("counter", torch.zeros(1), persistent=False)
    with_buffer = unsaved_state(net)
    assert with_buffer != before
    net.counter += 1
    assert unsaved_state(net) not in (before, with_buffer)


def corrupting_eval_fn(data: Any, model: nn.Module, config: dict[str, Any]) -> dict[str, float]:
    for parameter in model.parameters():
        if config["lr"] > 0.03:
            parameter.data.zero_()  # without a new version of the tensor
        else:
            parameter.data = parameter.data.clone()  # the same values, elsewhere in memory
    return {"zero": 0.0}


def test_an_eval_fn_may_change_parameters_unseen_by_autograd(whole: Dataset, tmp_path: Path) -> None:
    space = search.grid(lr=RATES, batch_size=[7])
    alone, together = (launch_pack(whole, space, tmp_path, pack, eval_fn=corrupting_eval_fn) for pack in (False, True))
    assert hashes(together) == hashes(alone)
