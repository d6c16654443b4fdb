"""Before a run: a few batches of each configuration, to learn what units cost and that the user's functions work.

Pilots stop when they have cost a small part of what they predict the run to cost; the configurations left over are
estimated by the mean of the others.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from regatta.configuration import Scalar
from regatta.data import Dataset
from regatta.engine.messages import (
    Event,
    ModelProfile,
    Task,
    TaskDone,
    TaskFailed,
    WorkerLost,
    WorkerReady,
)
from regatta.engine.profiling.cache import Known, ProfileCache
from regatta.engine.workers.base import WorkerPool
from regatta.errors import DiskError, RegattaError, UsageError, nearest
from regatta.journal.journal import Record
from regatta.plan.schedule.estimates import Estimates
from regatta.plan.schedule.units import Unit
from regatta.search.base import Goal

SHARE = 0.02  # of the work that is foreseen

Configs = Mapping[str, Mapping[str, Scalar]]


@dataclass
class ModelProfiles:
    """What was learnt: estimates for the scheduler, the size of states, who failed, which workers are there."""

    estimates: Estimates
    results: dict[str, ModelProfile] = field(default_factory=dict)
    failed: dict[str, TaskFailed] = field(default_factory=dict)
    ready: dict[str, WorkerReady] = field(default_factory=dict)
    start_seconds: float | None = None  # until a process is there that prepares data
    memory: float | None = None  # bytes of a device for each worker, the least of any
    cached: set[str] = field(default_factory=set)  # of whom an earlier run has told
    lost: set[str] = field(default_factory=set)  # workers that will not come back

    def on_worker_up(self, event: WorkerReady) -> None:
        self.ready[event.worker] = event
        self.lost.discard(event.worker)
        if event.info.get("memory"):
            self.memory = min(float(event.info["memory"]), self.memory or math.inf)
        if "maker_seconds" in event.info:
            told = float(event.info["maker_seconds"])
            self.start_seconds = told if self.start_seconds is None else min(told, self.start_seconds)

    def on_worker_down(self, event: WorkerLost) -> None:
        self.ready.pop(event.worker, None)
        if event.for_good:
            self.lost.add(event.worker)


def profile_models(
    pool: WorkerPool,
    dataset: Dataset,
    configs: Configs,
    epochs: int,
    metric: str,
    heard: Callable[[Event], None] = lambda event: None,
    begun: Callable[[str], None] = lambda worker: None,
    between: Callable[[], None] = lambda: None,
    profiles: ProfileCache | None = None,
) -> ModelProfiles:
    """Try configurations on the pool's workers, which are started; raises when not a single one works.

    `begun` is told who begins a pilot; `between` is called whenever something happened, or the pool was woken. What
    `profiles` know is not tried again, but that every worker tries one, and are told what is new.
    """
    pilots = _Pilots(pool.workers, dataset, configs, epochs, profiles)
    pool.start()
    begin, first = time.perf_counter(), None
    while not pilots.over():
        for event in pool.events():
            counts = pilots.take(event)
            heard(replace(event, profile=None) if isinstance(event, TaskDone) and not counts else event)
        if pilots.outcome.ready and first is None:
            first = time.perf_counter() - begin
        between()
        for worker, task in pilots.dispatch():
            pool.submit(worker, task)
            begun(worker)
    pilots.check(metric)
    if profiles is not None:
        profiles.keep(pilots.news(), start_seconds=pilots.outcome.start_seconds, memory=pilots.outcome.memory)
        pilots.outcome.start_seconds = profiles.start_seconds
    if pilots.outcome.start_seconds is None:  # no worker has tried: as long as the first of them took
        pilots.outcome.start_seconds = first
    return pilots.outcome


def cached_models(
    workers: Sequence[str], dataset: Dataset, configs: Configs, goal: Goal, profiles: ProfileCache
) -> ModelProfiles | None:
    """What `profiles` know of these configurations, if it is as much as pilots would find out; no worker is needed."""
    pilots = _Pilots(workers, dataset, configs, goal.epochs, profiles)
    pilots.outcome.start_seconds, pilots.outcome.memory = profiles.start_seconds, profiles.memory
    if pilots.wants_more():
        return None
    pilots.check(goal.metric)
    return pilots.outcome


def told(result: ModelProfile) -> dict[str, object]:
    """What a journal's line says of a pilot."""
    return {name: value for name, value in vars(result).items() if name not in ("metrics", "forgotten")}


def models_from_journal(dataset: Dataset, history: Iterable[Record]) -> ModelProfiles:
    """What a journal says of pilots and units, without trying anything."""
    known = all(part.rows is not None for part in dataset.train + dataset.eval)
    outcome = _nothing_known(dataset)
    for line in history:
        if line["event"] == "pilot":
            fields = {name: line[name] for name in ModelProfile.__dataclass_fields__ if name in line}
            _learn(outcome, line["config"], ModelProfile(**fields, metrics=()), known)
        elif line["event"] == "unit" and line.get("pack") is None:
            unit = Unit(line["kind"], line["config"], line["epoch"], line["partition"])
            outcome.estimates.observe(unit, line["worker"], line["end"] - line["start"])
    return outcome


def _nothing_known(dataset: Dataset) -> ModelProfiles:
    known = all(part.rows is not None for part in dataset.train + dataset.eval)
    train, judged = ([part.rows or 0 if known else 1 for part in parts] for parts in (dataset.train, dataset.eval))
    return ModelProfiles(Estimates(train, judged))


def _learn(outcome: ModelProfiles, config: str, result: ModelProfile, known_rows: bool) -> None:
    outcome.results[config] = result
    train, judged, prepare = (
        result.train_seconds_per_row, _judging(result), result.prepare_seconds_per_row,
    )  # fmt: skip
    if not known_rows:  # then a partition counts as one row
        train, judged, prepare = train * result.train_rows, judged * result.eval_rows, prepare * result.train_rows
    outcome.estimates.set_profile(config, train, judged, result.fixed_seconds, prepare)


def _judging(result: ModelProfile) -> float:
    """Seconds per row of evaluation units beyond what a training unit costs besides its rows: they leave no state."""
    if result.eval_fixed_seconds is None or not result.eval_rows:
        return result.eval_seconds_per_row
    less = result.fixed_seconds - result.eval_fixed_seconds
    return max(0.0, result.eval_seconds_per_row - less / result.eval_rows)


class _Pilots:
    def __init__(
        self, workers: Sequence[str], dataset: Dataset, configs: Configs, epochs: int, profiles: ProfileCache | None
    ) -> None:
        self.workers = workers
        self.configs = configs
        self.known_rows = all(part.rows is not None for part in dataset.train + dataset.eval)
        self.outcome = _nothing_known(dataset)
        self.eval_partitions = len(dataset.eval)
        self.visits = epochs * len(dataset.train)
        self.rows = sum(part.rows or 0 for part in dataset.train) * epochs
        self.train, self.eval = dataset.holders(workers)
        order = list(configs)
        random.Random(0).shuffle(order)  # the first few should stand for all of them
        self.spent = 0.0
        if profiles is not None:
            self._recall(profiles)
        self.left = [config for config in order if config not in self.outcome.cached]
        self.known = [config for config in order if config in self.outcome.cached]
        self.seconds: dict[str, float] = {}
        self.busy: set[str] = set()
        self.company: set[str] = set()  # workers that only keep the others from being alone
        self.proved: set[str] = set()  # workers on which some configuration works
        self.losses = 0

    def _recall(self, profiles: ProfileCache) -> None:
        for config, values in self.configs.items():
            found = profiles.find(values)
            if found is not None:
                _learn(self.outcome, config, found, self.known_rows)
                self.outcome.cached.add(config)
        self.spent = profiles.spent(self.outcome.cached)

    def take(self, event: Event) -> bool:
        """Learn from an event; whether it tells something, and is not of a worker that only keeps others company."""
        if isinstance(event, WorkerReady):
            self.outcome.on_worker_up(event)
        elif isinstance(event, WorkerLost):
            self.company.discard(event.worker)
            self._lose(event)
        elif isinstance(event, TaskDone | TaskFailed) and event.worker in self.company:
            self.company.discard(event.worker)
            return False
        elif isinstance(event, TaskDone | TaskFailed):
            self.busy.discard(event.worker)
            self.spent += event.end - event.start
            if isinstance(event, TaskFailed):
                if event.disk:
                    raise DiskError(event.traceback)
                self.outcome.failed[event.task.config] = event
                self.outcome.results.pop(event.task.config, None)
                self.outcome.cached.discard(event.task.config)
            elif event.profile is not None:
                self.proved.add(event.worker)
                self.seconds[event.task.config] = event.end - event.start
                self.outcome.cached.discard(event.task.config)
                _learn(self.outcome, event.task.config, event.profile, self.known_rows)
        return True

    def dispatch(self) -> list[tuple[str, Task]]:
        """What idle workers should try."""
        found = []
        for worker in self.outcome.ready:
            if worker in self.busy or worker in self.company or not self.train.get(worker):
                continue
            if self.wants_more():
                config = self.left.pop()
            elif self.known and worker not in self.proved:
                config = self.known.pop()
            elif self.busy and self.seconds and len(self.configs) >= len(self.workers):
                self.company.add(worker)  # in the run nobody will have the machine to himself
                found.append((worker, self._task(worker, next(iter(self.seconds)))))
                continue
            else:
                continue
            self.busy.add(worker)
            found.append((worker, self._task(worker, config)))
        return found

    def _task(self, worker: str, config: str) -> Task:
        eval_partition = self.eval[worker][0] if self.eval[worker] else None
        return Task("pilot", config, self.configs[config], 0, self.train[worker][0], eval_partition=eval_partition)

    def over(self) -> bool:
        everyone = set(self.workers) <= self.outcome.ready.keys() | self.outcome.lost  # who was lost may not come back
        unproved = [worker for worker in self.outcome.ready if self.train.get(worker) and worker not in self.proved]
        idle = not self.busy and not self.company and not self.wants_more() and not (self.known and unproved)
        return everyone and bool(self.outcome.ready) and idle

    def wants_more(self) -> bool:
        return bool(self.left) and not self._enough()

    def news(self) -> list[Known]:
        """What was measured now."""
        results = self.outcome.results
        return [Known(self.configs[config], results[config], taken) for config, taken in self.seconds.items()]

    def check(self, metric: str) -> None:
        """A sweep of which nothing works, or that looks for a metric nobody gives, must not begin."""
        if self.configs and not self.seconds and self.outcome.failed:
            first = next(iter(self.outcome.failed.values()))
            raise UsageError(
                f"No configuration can be trained. The first, {first.task.config}, failed: {first.error}"
                f"\n\n{first.traceback}",
                hint=f"Its values: {dict(first.task.values)}.",
            )
        names = sorted({name for result in self.outcome.results.values() for name in result.metrics})
        unjudged = self.eval_partitions and not any(result.eval_rows for result in self.outcome.results.values())
        if self.configs and metric not in names and not unjudged:  # those who train may hold nothing to judge on
            raise UsageError(
                f"No model reports the metric {metric!r}; they report {', '.join(names)}.",
                candidates=nearest(metric, names),
                hint="Give metric= one of these, or let eval_fn return it.",
            )

    def _lose(self, event: WorkerLost) -> None:
        """The configuration that was tried gets no estimate; whether it is to blame, its units will show."""
        self.outcome.on_worker_down(event)
        if event.worker not in self.busy:
            return
        self.busy.discard(event.worker)
        self.losses += 1
        all_tried = not self.left and not self.known and not self.busy
        if not self.seconds and (all_tried or self.losses > 2 * len(self.workers)):
            raise RegattaError(f"Workers die while they try the first batches: {event.worker} {event.reason}.")

    def _enough(self) -> bool:
        results = self.outcome.results.values()
        if len(results) < 2 * len(self.workers):
            return False
        per_run = [r.train_seconds_per_row * self.rows + r.fixed_seconds * self.visits for r in results]
        foreseen = sum(per_run) / len(per_run) * len(self.configs)
        return self.spent > SHARE * foreseen
