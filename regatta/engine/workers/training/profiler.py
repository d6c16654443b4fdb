"""What a pilot measures: a few batches of a new model, and what a unit costs beside its batches.

A unit is taken to cost (its batches at the pace that the model has settled to) + (having the state, the slower first
batch after that, leaving the new state). No measurement relies on a single moment where that moment is short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from regatta.configuration import derive_seed
from regatta.data import batch_order
from regatta.engine.messages import ModelProfile, Task
from regatta.engine.workers.training.device_memory import growth
from regatta.engine.workers.training.model_cache import CachedModel
from regatta.engine.workers.training.packs import build_of
from regatta.frameworks.base import Indices

if TYPE_CHECKING:
    from regatta.engine.workers.training.trainer import Costs, Trainer

MOST, COUNTED = 48, 20  # batches of a pilot, and those of them, the last, that count
PIECE = 4  # batches that are timed together, where they are not long
LONG = 0.01  # seconds of a batch that is timed by itself
GROUP_PIECE = 6  # the same in a group, which also agrees at the end of each piece, as at that of a unit
BUDGET = 0.2  # seconds for batches beyond the first two
GROUP_BUDGET = 0.5
ROUND_BUDGET = 0.05  # the same, where there are so few that they come again
TRIM = 5  # of so many batches, the quickest and the slowest are left out
AGAIN, TIMES = 0.03, 3  # what takes less is measured again, so many times at most
ROWS = 256  # of data that only the user's own functions can cut into batches
SAMPLE = 6  # batches for which a transform_fn makes rows

Result = TypeVar("Result")
Steps: TypeAlias = Callable[[Sequence[Indices]], dict[str, float]]
Agree: TypeAlias = Callable[[bool], bool]  # whether something holds for any member of a group


@dataclass(frozen=True)
class BatchTimes:
    """Seconds of the first batch, and of each later one; what the batches gave."""

    first: float
    later: list[float]
    found: dict[str, float]

    @property
    def each(self) -> float:
        return settled(self.later[-COUNTED:])

    @property
    def start(self) -> float:
        """What the first batch takes more than another."""
        return max(0.0, self.first - self.each)


@dataclass(frozen=True)
class _PhaseCost:
    """What training or evaluating a model takes, of so many rows: for each, for a batch, and once."""

    rows: int = 0
    per_row: float = 0.0
    each: float = 0.0
    start: float = 0.0
    metrics: tuple[str, ...] = ()
    pace: BatchTimes | None = None  # of training by batches


class ModelProfiler:
    """The pilots of one worker, each of one model."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._rehearsed = False

    def run(self, task: Task, costs: Costs) -> ModelProfile:
        """Measure a new model; nothing of it is kept but the data, and what is compiled."""
        if self._trainer.group_member.any(task, not self._rehearsed):
            self._rehearsed = True  # the first model also pays for imports, caches and threads
            self._measure(task, costs)
            self._trainer.partition_cache.sample_again()
        return self._measure(task, costs)

    def _measure(self, task: Task, costs: Costs) -> ModelProfile:
        trainer = self._trainer
        peak = growth(trainer.device)
        cached, data = trainer.set_up("train", task.partition, task, costs)
        framework, trainee = cached.framework, cached.trainee
        unsaved_values = framework.unsaved_values(trainee)
        trained = self._train(cached, data, task)
        forgotten = tuple(
            name for name, value in framework.unsaved_values(trainee).items() if unsaved_values.get(name) != value
        )
        judged = self._judge(cached, task, costs)
        peak_bytes = peak()
        trained = self._train_others(trained, cached, data, task)
        save, fetch, fetched = self._carry(cached, task)
        start = self._start(fetched, data, task, trained.each)
        build = build_of(cached, trainer.setup.recipe, task.values, trainer.device)
        rows, prepare = trainer.partition_cache.sampled or (framework.rows(data), 0.0)
        return ModelProfile(
            trained.per_row, judged.per_row, rows, judged.rows,
            fixed_seconds=fetch + start + save,
            eval_fixed_seconds=fetch + judged.start,
            state_bytes=fetched.bytes,
            metrics=(*trained.metrics, *judged.metrics),
            forgotten=forgotten,
            build=build,
            prepare_seconds_per_row=prepare,
            peak_bytes=peak_bytes,
            unsharable=trainer.partition_cache.unsharable,
        )  # fmt: skip

    def _train(self, cached: CachedModel, data: Any, task: Task) -> _PhaseCost:
        """No more batches than a unit has, for a schedule may end with them."""
        with cached.framework.seeded(derive_seed(self._trainer.setup.seed, "pilot")):
            if self._trainer.setup.recipe.train_fn is not None:
                return self._train_opaque(cached, data, task)
            order = _shuffled(cached.framework.rows(data), task)
            most = min(MOST, len(order) - 1)
            pace = paced(
                self._steps("train", cached, data, task), order, self._agree(task), most, task.group_rank is not None
            )
        return self._trained(pace, cached, data, task)

    def _train_others(self, found: _PhaseCost, cached: CachedModel, data: Any, task: Task) -> _PhaseCost:
        """Where a unit has few batches, those of more such models count too; of the memory, only the first's."""
        pace = found.pace
        if pace is None or task.group_rank is not None or cached.framework.COMPILES:
            return found
        order, began = _shuffled(cached.framework.rows(data), task), time.perf_counter()
        most = min(MOST, len(order) - 1)
        if most >= COUNTED:
            return found
        with cached.framework.seeded(derive_seed(self._trainer.setup.seed, "pilot")):
            while len(pace.later) < COUNTED and time.perf_counter() - began < ROUND_BUDGET:
                another = self._trainer.build(task.values)
                pace.later.extend(paced(self._steps("train", another, data, task), order, most=most).later)
        return self._trained(pace, cached, data, task)

    def _trained(self, pace: BatchTimes, cached: CachedModel, data: Any, task: Task) -> _PhaseCost:
        rows = cached.framework.rows(data)
        total = (self._trainer.partition_cache.sampled or (rows,))[0]
        per_row = pace.each * steps_of(total, _size(task)) / max(1, total)
        return _PhaseCost(rows, per_row, pace.each, metrics=tuple(map(_train_name, pace.found)), pace=pace)

    def _train_opaque(self, cached: CachedModel, data: Any, task: Task) -> _PhaseCost:
        """A train_fn trains on some rows, and on more of them if that was quick; on all, if they cannot be cut."""
        rows, cuttable = cached.framework.rows(data), isinstance(data, tuple)
        for most in (ROWS, SAMPLE * ROWS):
            cut = tuple(part[:most] for part in data) if cuttable else data
            seconds, found = _timed(partial(self._trainer.train_opaque, cached, cut, task))
            if seconds > AGAIN and not cached.framework.COMPILES:
                break
        per_row = seconds / max(1, min(rows, most) if cuttable else rows)
        return _PhaseCost(rows, per_row, metrics=tuple(map(_train_name, found)))

    def _judge(self, cached: CachedModel, task: Task, costs: Costs) -> _PhaseCost:
        """The loss on a few batches, and the user's eval_fn on all data."""
        if task.eval_partition is None:
            return _PhaseCost()
        trainer, framework, recipe = self._trainer, cached.framework, self._trainer.setup.recipe
        data = trainer.partition("eval", task.eval_partition, framework, costs)
        rows, seconds, start, metrics = framework.rows(data), 0.0, 0.0, dict[str, float]()
        with framework.seeded(derive_seed(trainer.setup.seed, "eval")):
            if recipe.train_fn is None:
                pace = paced(self._steps("evaluate", cached, data, task), _in_order(rows, task), self._agree(task))
                seconds, start, metrics = pace.each * steps_of(rows, _size(task)), pace.start, pace.found
            judging = partial(trainer.judged_by_user, cached, data, task)
            more, found = _timed(judging)
            if more and (more < AGAIN or framework.COMPILES):
                more, found = _timed(judging)
        return _PhaseCost(rows, (seconds + more) / max(1, rows), start=start, metrics=tuple({**metrics, **found}))

    def _carry(self, cached: CachedModel, task: Task) -> tuple[float, float, CachedModel]:
        """Seconds of leaving a state where those of the run will be, and of having it again; the model that has it."""
        from regatta.engine.workers.training.trainer import Costs

        trainer = self._trainer
        with trainer.scratch() as path:
            save, _ = _typical(lambda: trainer.leave(cached.framework, cached.trainee, path, Costs()))
            unit = replace(task, kind="train", state_in=path)

            def fetch() -> CachedModel:
                with cached.framework.seeded(0):  # every unit is
                    fetched = trainer.fetch(unit, Costs())
                trainer.model_cache.put(task.config, fetched)
                return fetched

            trainer.model_cache.put(task.config, cached)
            return save, *_typical(fetch)

    def _start(self, cached: CachedModel, data: Any, task: Task, each: float) -> float:
        """What the first batch of a unit takes more than the others; in a group, nobody knows."""
        if task.group_rank is not None or self._trainer.setup.recipe.train_fn is not None:
            return 0.0
        first, *others = _shuffled(cached.framework.rows(data), task)
        if len(others) < 2:
            return 0.0  # it has taken as many steps already as a unit has
        with cached.framework.seeded(derive_seed(self._trainer.setup.seed, "pilot")):
            seconds, _ = _timed(partial(self._steps("train", cached, data, task), [first]))
        return max(0.0, seconds - each)

    def _steps(self, what: Literal["train", "evaluate"], cached: CachedModel, data: Any, task: Task) -> Steps:
        loss_fn, values = self._trainer.setup.recipe.loss_fn, dict(task.values)
        do = self._trainer.doing(what, cached.framework, task)
        return lambda batches: do(cached.trainee, data, batches, loss_fn, values)

    def _agree(self, task: Task) -> Agree:
        return partial(self._trainer.group_member.any, task)


def paced(
    do: Steps, order: Sequence[Indices], agree: Agree = bool, most: int = MOST, grouped: bool = False
) -> BatchTimes:
    """Take batches of full size, round and round, until they have told enough: few where they are long.

    Members of a group must take the same ones, so all that depends on time is agreed upon.
    """
    full = [batch for batch in order if len(batch) == len(order[0])]
    first, found = _timed(partial(do, full[:1]))
    second, _ = _timed(partial(do, full[1:2] or full[:1]))
    pieces, taken, begun = [second], 2, time.perf_counter()
    size = GROUP_PIECE if grouped else 1 if agree(second > LONG) else PIECE
    while taken < most:
        size = min(size, most - taken)
        budget = GROUP_BUDGET if grouped else BUDGET if taken < len(full) else ROUND_BUDGET
        if agree(time.perf_counter() - begun + second * size > budget):
            break
        batches = [full[k % len(full)] for k in range(taken, taken + size)]
        pieces += [_timed(partial(do, batches))[0] / size] * size
        taken += size
    return BatchTimes(first, pieces, found)


def settled(seconds: Sequence[float]) -> float:
    """A mean that few disturbed ones do not move."""
    left_out = len(seconds) // TRIM
    return fmean(sorted(seconds)[left_out:-left_out]) if left_out else median(seconds)


def steps_of(rows: int, size: int) -> float:
    """Batches of so many rows; the last, if it is smaller, counts for more than its rows: steps have a fixed part."""
    whole, rest = divmod(rows, size)
    return whole + ((1 + rest / size) / 2 if rest else 0.0)


def _timed(do: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    found = do()
    return time.perf_counter() - start, found


def _typical(do: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds of something, measured several times if it is short; what it gave at last."""
    seconds, found = _timed(do)
    taken = [seconds]
    while len(taken) < TIMES and sum(taken) < AGAIN:
        seconds, found = _timed(do)
        taken.append(seconds)
    return median(taken), found


def _shuffled(rows: int, task: Task) -> list[Indices]:
    return batch_order(rows, _size(task), 0)


def _in_order(rows: int, task: Task) -> list[Indices]:
    from regatta.engine.workers.training.trainer import in_order

    return in_order(rows, _size(task))


def _size(task: Task) -> int:
    from regatta.engine.workers.training.trainer import batch_size

    return batch_size(task.values)


def _train_name(name: str) -> str:
    from regatta.engine.workers.training.trainer import train_name

    return train_name(name)
