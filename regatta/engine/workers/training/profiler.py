"""Profiles a new model: times a few batches, and what a unit costs besides its batches.

The cost of a unit is estimated as its batches, at the speed that the model has settled to, plus a fixed part: load the
state, run a slower first batch, save the new state. Short durations are never measured just once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from regatta.data import batch_order
from regatta.engine.messages import ModelProfile, Task
from regatta.engine.sharing.ledger import BlockKey
from regatta.engine.workers.training.device_memory import measure_peak
from regatta.engine.workers.training.model_cache import CachedModel
from regatta.engine.workers.training.packs import build_of
from regatta.engine.workers.training.unit import UnitCosts, batch_size, batches_in_order, train_metric
from regatta.frameworks.base import Indices
from regatta.seeds import derive_seed

if TYPE_CHECKING:
    from regatta.engine.workers.training.trainer import Trainer

MAX_BATCHES = 48
COUNTED_BATCHES = 20  # the last ones count
BATCHES_PER_TIMING = 4  # short batches are timed together
LONG_BATCH_S = 0.01  # a longer batch is timed by itself
GROUP_BATCHES_PER_TIMING = 6  # a group also agrees at the end of each timing, as it does at the end of a unit
BUDGET_S = 0.2  # for the batches after the first two
GROUP_BUDGET_S = 0.5
REPEAT_BUDGET_S = 0.05  # where a partition has so few batches that they are repeated
TRIM_ONE_IN = 5  # for each 5 batches, the fastest and the slowest are left out
SHORT_S, MAX_REPEATS = 0.03, 3  # what is shorter is measured again, at most 3 times in all
OPAQUE_ROWS = 256  # of data that only the user's functions can divide into batches
SAMPLE_BATCHES = 6  # for which transform_fn makes rows

Result = TypeVar("Result")
TakeSteps: TypeAlias = Callable[[Sequence[Indices]], dict[str, float]]
# Whether a condition holds for any member of a group: all must take the same batches, whatever the time that they take.
Agree: TypeAlias = Callable[[bool], bool]


@dataclass(frozen=True)
class BatchTimes:
    """Seconds of the first batch and of each later one, and the metrics of the first."""

    first: float
    later: list[float]
    metrics: dict[str, float]

    @property
    def each(self) -> float:
        return trimmed_mean(self.later[-COUNTED_BATCHES:])

    @property
    def startup(self) -> float:
        """How much longer the first batch takes than the others."""
        return max(0.0, self.first - self.each)


@dataclass(frozen=True)
class _PhaseTimes:
    """What training or evaluating takes: seconds for each row, for each batch, and once."""

    rows: int = 0
    per_row: float = 0.0
    per_batch: float = 0.0
    startup: float = 0.0
    metrics: tuple[str, ...] = ()
    batch_times: BatchTimes | None = None  # of training by batches


class ModelProfiler:
    """Profiles models for one worker, one model at a time."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._warmed_up = False

    def run(self, task: Task, costs: UnitCosts) -> ModelProfile:
        """Profile a new model; only the data and compiled steps are kept."""
        if self._trainer.group_member.any_member(task, not self._warmed_up):
            self._warmed_up = True  # the first model also pays for imports, caches and threads
            self._measure(task, costs)
            self._trainer.partition_cache.forget_sample()
        return self._measure(task, costs)

    def _measure(self, task: Task, costs: UnitCosts) -> ModelProfile:
        trainer = self._trainer
        peak = measure_peak(trainer.device)
        cached, data = trainer.prepare(task, costs)
        framework, trainee = cached.framework, cached.trainee
        before = framework.unsaved_values(trainee)
        training = self._train(cached, data, task)
        after = framework.unsaved_values(trainee)
        evaluation = self._evaluate(cached, task, costs)
        peak_bytes = peak()
        training = self._train_more_models(training, cached, data, task)
        save, load, loaded = self._save_and_load(cached, task)
        startup = self._startup(loaded, data, task, training.per_batch)
        rows, transform = trainer.partition_cache.sampled or (framework.rows(data), 0.0)
        return ModelProfile(
            training.per_row, evaluation.per_row, rows, evaluation.rows,
            fixed_seconds=load + startup + save,
            eval_fixed_seconds=load + evaluation.startup,
            state_bytes=loaded.bytes,
            metrics=(*training.metrics, *evaluation.metrics),
            forgotten=tuple(name for name, value in after.items() if before.get(name) != value),
            build=build_of(cached, trainer.setup.recipe, task.values, trainer.device),
            prepare_seconds_per_row=transform,
            peak_bytes=peak_bytes,
            unsharable=trainer.partition_cache.unsharable,
        )  # fmt: skip

    def _train(self, cached: CachedModel, data: Any, task: Task) -> _PhaseTimes:
        """Take no more batches than a unit has: a learning-rate schedule may end with them."""
        with cached.framework.seeded(derive_seed(self._trainer.setup.seed, "pilot")):
            if self._trainer.setup.recipe.train_fn is not None:
                return self._run_train_fn(cached, data, task)
            order = _shuffled(cached.framework.rows(data), task)
            limit, grouped = min(MAX_BATCHES, len(order) - 1), task.group_rank is not None
            times = time_batches(self._steps("train", cached, data, task), order, self._agree(task), limit, grouped)
        return self._training_times(times, cached, data, task)

    def _train_more_models(self, found: _PhaseTimes, cached: CachedModel, data: Any, task: Task) -> _PhaseTimes:
        """Where a unit has few batches, time those of more such models; the peak memory is of the first alone."""
        times = found.batch_times
        if times is None or task.group_rank is not None or cached.framework.COMPILES:
            return found
        order, begun = _shuffled(cached.framework.rows(data), task), time.perf_counter()
        limit = min(MAX_BATCHES, len(order) - 1)
        if limit >= COUNTED_BATCHES:
            return found
        with cached.framework.seeded(derive_seed(self._trainer.setup.seed, "pilot")):
            while len(times.later) < COUNTED_BATCHES and time.perf_counter() - begun < REPEAT_BUDGET_S:
                another = self._trainer.build(task.values)
                more = time_batches(self._steps("train", another, data, task), order, max_batches=limit)
                times.later.extend(more.later)
        return self._training_times(times, cached, data, task)

    def _training_times(self, times: BatchTimes, cached: CachedModel, data: Any, task: Task) -> _PhaseTimes:
        rows = cached.framework.rows(data)
        total = (self._trainer.partition_cache.sampled or (rows,))[0]
        per_row = times.each * equivalent_batches(total, batch_size(task.values)) / max(1, total)
        metrics = tuple(map(train_metric, times.metrics))
        return _PhaseTimes(rows, per_row, times.each, metrics=metrics, batch_times=times)

    def _run_train_fn(self, cached: CachedModel, data: Any, task: Task) -> _PhaseTimes:
        """Time train_fn on some rows, and on more if that was short; on all rows if they cannot be divided."""
        rows, divisible = cached.framework.rows(data), isinstance(data, tuple)
        for limit in (OPAQUE_ROWS, SAMPLE_BATCHES * OPAQUE_ROWS):
            some = tuple(part[:limit] for part in data) if divisible else data
            seconds, metrics = _timed(partial(self._trainer.run_train_fn, cached, some, task))
            if seconds > SHORT_S and not cached.framework.COMPILES:
                break
        per_row = seconds / max(1, min(rows, limit) if divisible else rows)
        return _PhaseTimes(rows, per_row, metrics=tuple(map(train_metric, metrics)))

    def _evaluate(self, cached: CachedModel, task: Task, costs: UnitCosts) -> _PhaseTimes:
        """Time the loss on a few batches, and the user's eval_fn on all data."""
        if task.eval_partition is None:
            return _PhaseTimes()
        trainer, framework = self._trainer, cached.framework
        place = trainer.setup.place("eval", task.values, task.eval_partition)
        data = trainer.partition_cache.partition(BlockKey("eval", place), framework, costs)
        rows, seconds, startup, metrics = framework.rows(data), 0.0, 0.0, dict[str, float]()
        with framework.seeded(derive_seed(trainer.setup.seed, "eval")):
            if trainer.setup.recipe.train_fn is None:
                size = batch_size(task.values)
                steps = self._steps("evaluate", cached, data, task)
                times = time_batches(steps, batches_in_order(rows, size), self._agree(task))
                seconds, startup, metrics = times.each * equivalent_batches(rows, size), times.startup, times.metrics
            run_eval_fn = partial(trainer.run_eval_fn, cached, data, task)
            more, users_metrics = _timed(run_eval_fn)
            if more and (more < SHORT_S or framework.COMPILES):
                more, users_metrics = _timed(run_eval_fn)
        names = tuple({**metrics, **users_metrics})
        return _PhaseTimes(rows, (seconds + more) / max(1, rows), startup=startup, metrics=names)

    def _save_and_load(self, cached: CachedModel, task: Task) -> tuple[float, float, CachedModel]:
        """Seconds to save a state beside those of the run, seconds to load it again, and the loaded model."""
        trainer = self._trainer
        with trainer.scratch_file() as path:
            save, _ = _typical(lambda: trainer.save_state(cached.framework, cached.trainee, path, UnitCosts()))
            unit = replace(task, kind="train", state_in=path)

            def load() -> CachedModel:
                with cached.framework.seeded(0):  # every unit is
                    loaded = trainer.load_model(unit, UnitCosts())
                trainer.model_cache.put(task.config, loaded)
                return loaded

            trainer.model_cache.put(task.config, cached)
            return save, *_typical(load)

    def _startup(self, cached: CachedModel, data: Any, task: Task, per_batch: float) -> float:
        """How much longer the first batch of a unit takes than the others; not known for a group or a train_fn."""
        if task.group_rank is not None or self._trainer.setup.recipe.train_fn is not None:
            return 0.0
        first, *others = _shuffled(cached.framework.rows(data), task)
        if len(others) < 2:
            return 0.0  # the model has taken as many steps already as a unit has
        with cached.framework.seeded(derive_seed(self._trainer.setup.seed, "pilot")):
            seconds, _ = _timed(partial(self._steps("train", cached, data, task), [first]))
        return max(0.0, seconds - per_batch)

    def _steps(self, name: Literal["train", "evaluate"], cached: CachedModel, data: Any, task: Task) -> TakeSteps:
        loss_fn, values = self._trainer.setup.recipe.loss_fn, dict(task.values)
        function = self._trainer.function(name, cached.framework, task)
        return lambda batches: function(cached.trainee, data, batches, loss_fn, values)

    def _agree(self, task: Task) -> Agree:
        return partial(self._trainer.group_member.any_member, task)


def time_batches(
    take_steps: TakeSteps,
    order: Sequence[Indices],
    agree: Agree = bool,
    max_batches: int = MAX_BATCHES,
    grouped: bool = False,
) -> BatchTimes:
    """Time batches of full size, repeating them if there are few; long batches are timed only a few times."""
    full = [batch for batch in order if len(batch) == len(order[0])]
    first, metrics = _timed(partial(take_steps, full[:1]))
    second, _ = _timed(partial(take_steps, full[1:2] or full[:1]))
    times, taken, begun = [second], 2, time.perf_counter()
    size = GROUP_BATCHES_PER_TIMING if grouped else 1 if agree(second > LONG_BATCH_S) else BATCHES_PER_TIMING
    while taken < max_batches:
        size = min(size, max_batches - taken)
        budget = GROUP_BUDGET_S if grouped else BUDGET_S if taken < len(full) else REPEAT_BUDGET_S
        if agree(time.perf_counter() - begun + second * size > budget):
            break
        batches = [full[k % len(full)] for k in range(taken, taken + size)]
        times += [_timed(partial(take_steps, batches))[0] / size] * size
        taken += size
    return BatchTimes(first, times, metrics)


def trimmed_mean(seconds: Sequence[float]) -> float:
    """A mean that a few disturbed measurements do not move."""
    left_out = len(seconds) // TRIM_ONE_IN
    return fmean(sorted(seconds)[left_out:-left_out]) if left_out else median(seconds)


def equivalent_batches(rows: int, size: int) -> float:
    """Full batches that take as long as these rows."""
    whole, rest = divmod(rows, size)  # the rest counts for more than its rows, because each step has a fixed part
    return whole + ((1 + rest / size) / 2 if rest else 0.0)


def _timed(function: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def _typical(function: Callable[[], Result]) -> tuple[float, Result]:
    """The median seconds of a function, called several times if it is short, and its last result."""
    seconds, result = _timed(function)
    taken = [seconds]
    while len(taken) < MAX_REPEATS and sum(taken) < SHORT_S:
        seconds, result = _timed(function)
        taken.append(seconds)
    return median(taken), result


def _shuffled(rows: int, task: Task) -> list[Indices]:
    return batch_order(rows, batch_size(task.values), 0)
