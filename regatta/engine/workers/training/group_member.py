"""What a worker does differently when it is a member of a group.

No member may wait for another one that has given up. So everything that can fail in a single member happens before
a point at which all members agree to go on, or its failure travels with the data that the members exchange.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from regatta.data import batch_order
from regatta.engine.messages import Address, GroupRank, Recipe, Task
from regatta.engine.workers.training.model_cache import CachedModel
from regatta.engine.workers.training.unit import UnitCosts, batch_size
from regatta.errors import UsageError
from regatta.frameworks.torch import group as torch_group
from regatta.frameworks.torch import rendezvous
from regatta.seeds import derive_seed

if TYPE_CHECKING:
    from regatta.engine.workers.training.trainer import Trainer

OnPrepared: TypeAlias = Callable[[CachedModel, Any], None]


def member_seed(group_rank: GroupRank | None, seed: int) -> int:
    """Each member draws its own random numbers; the first draws those that a single worker would draw."""
    return seed if group_rank is None or group_rank.rank == 0 else derive_seed(seed, "rank", group_rank.rank)


def check_groupable(recipe: Recipe, width: int, framework: str) -> None:
    """A group can train PyTorch models, batch by batch."""
    if framework not in ("torch", "auto"):
        raise UsageError(
            f"A group of {width} workers cannot train a model of {framework}; it trains models of PyTorch.",
            hint="Leave group= out of the cluster.",
        )
    if recipe.train_fn is not None:
        raise UsageError(
            f"A group of {width} workers cannot divide the work of train_fn among them.",
            hint="Give loss_fn instead, or leave group= out of the cluster.",
        )


class GroupMember:
    """A worker's membership in groups, one group at a time."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.server: rendezvous.RendezvousServer | None = None  # where members on other nodes find this worker
        self._meeting: Path | Address | None = None
        self._group: torch_group.TorchGroup | None = None
        self._checked: set[str] = set()  # configurations whose loss is known to be a mean

    def group(self, place: GroupRank) -> torch_group.TorchGroup:
        """The group of a task; the worker joins it if it is not in it yet."""
        if self._group is None or self._meeting != place.meeting:
            if isinstance(place.meeting, Path):
                store: Any = rendezvous.file_store(place.meeting, place.width)
            else:
                server = self.server if place.rank == 0 else None
                store = rendezvous.network_store(place.meeting.host, place.meeting.name, server)
            address = self.server.address if self.server is not None and place.nodes > 1 else None
            device = self._trainer.device
            self._group = torch_group.join(store, place.rank, place.width, place.backend, device, address)
            self._meeting = place.meeting
        return self._group

    def any_member(self, task: Task, mine: bool) -> bool:
        """Whether a condition holds for any member of the task's group."""
        return mine if task.group_rank is None else self.group(task.group_rank).any(mine)

    @contextlib.contextmanager
    def count_exchanges(self, task: Task, costs: UnitCosts) -> Iterator[None]:
        """A scope that adds the time of its exchanges to the costs of the task."""
        group = None if task.group_rank is None else self.group(task.group_rank)
        before = 0.0 if group is None else group.seconds
        yield
        if group is not None:
            costs.sync_seconds += group.seconds - before

    @contextlib.contextmanager
    def agree_on_model(self, task: Task) -> Iterator[OnPrepared]:
        """A scope that prepares a model and its data; all members leave it with the same model, or all fail."""
        if task.group_rank is None:
            yield lambda cached, data: None
            return
        group, prepared, error = self.group(task.group_rank), list[CachedModel](), None

        def on_prepared(cached: CachedModel, data: Any) -> None:
            self._check(task, cached, data)
            prepared.append(cached)

        try:
            yield on_prepared
        except BaseException as raised:  # noqa: BLE001 (user code may raise anything; the other members must know)
            error = raised
        torch_group.agree(group, prepared[0].trainee if prepared else None, error)

    def _check(self, task: Task, cached: CachedModel, data: Any) -> None:
        assert task.group_rank is not None
        recipe, width, framework = self._trainer.setup.recipe, task.group_rank.width, cached.framework
        check_groupable(recipe, width, framework.NAME)
        if task.kind == "eval" or task.group_rank.rank != 0 or task.config in self._checked:
            return
        batch = batch_order(framework.rows(data), batch_size(task.values), 0)[0]
        with framework.seeded(derive_seed(self._trainer.setup.seed, "check")):
            torch_group.check_mean(cached.trainee, data, batch, recipe.loss_fn, dict(task.values), width)
        self._checked.add(task.config)
