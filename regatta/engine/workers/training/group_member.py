"""A worker as a member of a group: what it does otherwise than alone.

Whatever can go wrong in one member alone comes before a point at which all agree to go on, or travels with what they
exchange, so that no member waits for one that has given up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from regatta.configuration import derive_seed
from regatta.data import batch_order
from regatta.engine.messages import (
    Address,
    GroupRank,
    Recipe,
    Task,
)
from regatta.engine.workers.training.model_cache import CachedModel
from regatta.errors import UsageError
from regatta.frameworks.torch import group as torch_group
from regatta.frameworks.torch import rendezvous

if TYPE_CHECKING:
    from regatta.engine.workers.training.trainer import Costs, Trainer

Prepared: TypeAlias = Callable[[CachedModel, Any], None]


def seed_of(group_rank: GroupRank | None, seed: int) -> int:
    """Each member draws its own random numbers; the first those that one worker alone would draw."""
    return seed if group_rank is None or group_rank.rank == 0 else derive_seed(seed, "rank", group_rank.rank)


def check_sharable(recipe: Recipe, width: int, framework: str) -> None:
    """What a group can train: models of PyTorch, a batch at a time."""
    if framework not in ("torch", "auto"):
        raise UsageError(
            f"A group of {width} workers cannot train a model of {framework}; it trains models of PyTorch.",
            hint="Leave group= out of the cluster.",
        )
    if recipe.train_fn is not None:
        raise UsageError(
            f"A group of {width} workers cannot share out among them what train_fn does.",
            hint="Give loss_fn instead, or leave group= out of the cluster.",
        )


class GroupMember:
    """The groups of one worker, one at a time."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.door: rendezvous.RendezvousServer | None = None  # where members on other nodes find this worker
        self._meeting: Path | Address | None = None
        self._group: torch_group.TorchGroup | None = None
        self._checked: set[str] = set()  # configurations whose loss is known to be a mean

    def group(self, group_rank: GroupRank) -> torch_group.TorchGroup:
        if self._group is None or self._meeting != group_rank.meeting:
            store, device = self._store(group_rank), self._trainer.device
            address = self.door.address if self.door is not None and group_rank.nodes > 1 else None
            self._group = torch_group.join(
                store, group_rank.rank, group_rank.width, group_rank.backend, device, address
            )
            self._meeting = group_rank.meeting
        return self._group

    def _store(self, group_rank: GroupRank) -> Any:
        if isinstance(group_rank.meeting, Path):
            return rendezvous.file_store(group_rank.meeting, group_rank.width)
        mine = self.door if group_rank.rank == 0 else None
        return rendezvous.far_store(group_rank.meeting.host, group_rank.meeting.name, mine)

    def any(self, task: Task, mine: bool) -> bool:
        """Whether something holds for any member."""
        return mine if task.group_rank is None else self.group(task.group_rank).any(mine)

    def doing(self, what: Literal["train", "evaluate"], group_rank: GroupRank) -> Callable[..., Any]:
        function: Callable[..., Any] = {"train": torch_group.train, "evaluate": torch_group.evaluate}[what]
        return partial(function, group=self.group(group_rank))

    @contextlib.contextmanager
    def timed(self, task: Task, costs: Costs) -> Iterator[None]:
        """Exchanges inside are costs of the task."""
        group = None if task.group_rank is None else self.group(task.group_rank)
        before = 0.0 if group is None else group.seconds
        yield
        if group is not None:
            costs.sync_seconds += group.seconds - before

    @contextlib.contextmanager
    def agreeing(self, task: Task) -> Iterator[Prepared]:
        """A scope in which a model and its data are prepared; all members leave it with the same model, or all fail."""
        if task.group_rank is None:
            yield lambda cached, data: None
            return
        group, found, error = self.group(task.group_rank), list[CachedModel](), None

        def prepared(cached: CachedModel, data: Any) -> None:
            self._check(task, cached, data)
            found.append(cached)

        try:
            yield prepared
        except BaseException as raised:  # noqa: BLE001 (the user's code may raise anything; the others must hear of it)
            error = raised
        torch_group.agree(group, found[0].trainee if found else None, error)

    def _check(self, task: Task, cached: CachedModel, data: Any) -> None:
        assert task.group_rank is not None
        recipe, width = self._trainer.setup.recipe, task.group_rank.width
        check_sharable(recipe, width, cached.framework.NAME)
        if task.kind != "eval" and task.group_rank.rank == 0 and task.config not in self._checked:
            self._check_loss(task, cached, data)
            self._checked.add(task.config)

    def _check_loss(self, task: Task, cached: CachedModel, data: Any) -> None:
        from regatta.engine.workers.training.trainer import batch_size

        assert task.group_rank is not None
        seed, recipe = self._trainer.setup.seed, self._trainer.setup.recipe
        batch = batch_order(cached.framework.rows(data), batch_size(task.values), 0)[0]
        with cached.framework.seeded(derive_seed(seed, "check")):
            torch_group.check_mean(
                cached.trainee, data, batch, recipe.loss_fn, dict(task.values), task.group_rank.width
            )
