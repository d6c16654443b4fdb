"""Profiling of single models: a few batches of each configuration show what units cost and that its functions work.

Profiling stops when it has cost a small share of the run that it predicts. The configurations that are left over are
estimated by those of their kind.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from regatta.configuration import Scalar
from regatta.data import Dataset
from regatta.engine.messages import Event, ModelProfile, Task, TaskDone, TaskFailed, WorkerLost, WorkerReady
from regatta.engine.profiling.cache import CachedProfile, ProfileCache
from regatta.engine.workers.base import WorkerPool
from regatta.errors import DiskError, RegattaError, UsageError, nearest
from regatta.journal.journal_file import Record
from regatta.plan.schedule.estimates import Estimates
from regatta.plan.schedule.model_kinds import LabelsByValues
from regatta.plan.schedule.units import Unit
from regatta.plan.strategy.form_packs import PackRate
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.search.base import Goal

MAX_COST_SHARE = 0.02  # of the predicted work that profiling may cost

Configs = Mapping[str, Mapping[str, Scalar]]


@dataclass(frozen=True)
class ProfilingRequest:
    """The configurations to profile, and the cache of earlier profiles where there is one."""

    dataset: Dataset
    goal: Goal
    configs: Configs = field(default_factory=dict)
    cache: ProfileCache | None = None


@dataclass(frozen=True)
class ProfilingHooks:
    """What the caller does while workers profile."""

    on_event: Callable[[Event], None] = lambda event: None
    on_begin: Callable[[str], None] = lambda worker: None  # the worker has got a task
    between: Callable[[], None] = lambda: None  # after the events of each wait, or when the pool was woken


NO_HOOKS = ProfilingHooks()


@dataclass
class ModelProfiles:
    """The profiles by configuration, estimates for the scheduler, and the workers that are there."""

    estimates: Estimates
    profiles: dict[str, ModelProfile] = field(default_factory=dict)
    failed: dict[str, TaskFailed] = field(default_factory=dict)
    ready: dict[str, WorkerReady] = field(default_factory=dict)
    start_seconds: float | None = None  # until a new process can preprocess data
    memory: float | None = None  # bytes of a device for each worker, the smallest of all
    cached: set[str] = field(default_factory=set)  # configurations whose profile an earlier run measured
    lost: set[str] = field(default_factory=set)  # workers that will not come back

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> ModelProfiles:
        train, evals = ([part.rows for part in parts] for parts in (dataset.train, dataset.eval))
        return cls(Estimates.for_partitions(train, evals))

    def add(self, config: str, profile: ModelProfile) -> None:
        self.profiles[config] = profile
        self.estimates.set_measured_profile(config, vars(profile))

    def on_worker_up(self, event: WorkerReady) -> None:
        self.ready[event.worker] = event
        self.lost.discard(event.worker)
        if event.info.get("memory"):
            self.memory = min(float(event.info["memory"]), self.memory or math.inf)
        if "maker_seconds" in event.info:
            seconds = float(event.info["maker_seconds"])
            self.start_seconds = seconds if self.start_seconds is None else min(seconds, self.start_seconds)

    def on_worker_down(self, event: WorkerLost) -> None:
        self.ready.pop(event.worker, None)
        if event.for_good:
            self.lost.add(event.worker)


@dataclass
class ProfilingResults:
    """Profiles by configuration; by build the rates of packs, and what groups spend on communication."""

    models: ModelProfiles
    pack_rates: dict[str, PackRate] = field(default_factory=dict)
    communication: dict[str, Communication] = field(default_factory=dict)
    builds: LabelsByValues = field(default_factory=LabelsByValues)


def profile_models(pool: WorkerPool, request: ProfilingRequest, hooks: ProfilingHooks = NO_HOOKS) -> ModelProfiles:
    """Start the pool's workers and profile configurations on them; raise when not a single one can be trained."""
    profiler = _ProfilingScheduler(pool.workers, request)
    found, cache = profiler.found, request.cache
    pool.start()
    begin, first_worker_seconds = time.perf_counter(), None
    while not profiler.done():
        for event in pool.events():
            counts = profiler.on_event(event)
            hooks.on_event(replace(event, profile=None) if isinstance(event, TaskDone) and not counts else event)
        if found.ready and first_worker_seconds is None:
            first_worker_seconds = time.perf_counter() - begin
        hooks.between()
        for worker, task in profiler.next_tasks():
            pool.submit(worker, task)
            hooks.on_begin(worker)
    profiler.check(request.goal.metric)
    if cache is not None:
        took, configs = profiler.seconds, request.configs
        measured = [CachedProfile(configs[config], found.profiles[config], took[config]) for config in took]
        cache.add(measured, start_seconds=found.start_seconds, memory=found.memory)
        found.start_seconds = cache.start_seconds
    if found.start_seconds is None:  # no worker measured it: take the time until the first worker was up
        found.start_seconds = first_worker_seconds
    return found


def cached_models(workers: Sequence[str], request: ProfilingRequest) -> ModelProfiles | None:
    """The profiles in the cache, if they are as much as profiling would find; needs no worker."""
    assert request.cache is not None
    profiler = _ProfilingScheduler(workers, request)
    profiler.found.start_seconds, profiler.found.memory = request.cache.start_seconds, request.cache.memory
    if profiler.wants_more():
        return None
    profiler.check(request.goal.metric)
    return profiler.found


def to_fields(profile: ModelProfile) -> dict[str, object]:
    """The fields of a profile in a `pilot` record of the journal."""
    return {name: value for name, value in vars(profile).items() if name not in ("metrics", "forgotten")}


def models_from_journal(dataset: Dataset, history: Iterable[Record]) -> ModelProfiles:
    """The profiles in a journal, with estimates corrected by its units."""
    found = ModelProfiles.for_dataset(dataset)
    for line in history:
        if line["event"] == "config":
            found.estimates.add_model(line["config"], line["values"])
        elif line["event"] == "pilot":
            fields = {name: line[name] for name in ModelProfile.__dataclass_fields__ if name in line}
            found.add(line["config"], ModelProfile(**fields, metrics=()))
        elif line["event"] == "unit" and line.get("pack") is None:
            unit = Unit(line["kind"], line["config"], line["epoch"], line["partition"])
            found.estimates.observe(unit, line["worker"], line["end"] - line["start"])
    return found


class _ProfilingScheduler:
    """Decides which worker profiles which configuration next, and when there are enough profiles."""

    def __init__(self, workers: Sequence[str], request: ProfilingRequest) -> None:
        dataset, epochs = request.dataset, request.goal.epochs
        self.workers = workers
        self.configs = request.configs
        self.found = ModelProfiles.for_dataset(dataset)
        self.eval_partitions = len(dataset.eval)
        self.visits = epochs * len(dataset.train)
        self.rows = sum(part.rows or 0 for part in dataset.train) * epochs
        self.train, self.eval = dataset.holders(workers)
        for config, values in self.configs.items():
            self.found.estimates.add_model(config, values)
            profile = None if request.cache is None else request.cache.find(values)
            if profile is not None:
                self.found.add(config, profile)
                self.found.cached.add(config)
        self.spent_seconds = 0.0 if request.cache is None else request.cache.spent(self.found.cached)
        order = list(self.configs)
        random.Random(0).shuffle(order)  # the first few should be representative
        self.unprofiled = [config for config in order if config not in self.found.cached]
        self.cached = [config for config in order if config in self.found.cached]
        self.seconds: dict[str, float] = {}  # that each profile took
        self.busy: set[str] = set()
        self.companions: set[str] = set()  # workers that train only so that the others do not have the machine alone
        self.proven: set[str] = set()  # workers on which some configuration works
        self.losses = 0

    def on_event(self, event: Event) -> bool:
        """Learn from an event, and return whether it counts; results of companions do not."""
        if isinstance(event, WorkerReady):
            self.found.on_worker_up(event)
        elif isinstance(event, WorkerLost):
            self.companions.discard(event.worker)
            self._on_worker_down(event)
        elif isinstance(event, TaskDone | TaskFailed):
            if event.worker in self.companions:
                self.companions.discard(event.worker)
                return False
            self.busy.discard(event.worker)
            self.spent_seconds += event.end - event.start
            if isinstance(event, TaskFailed):
                if event.disk:
                    raise DiskError(event.traceback)
                self.found.failed[event.task.config] = event
                self.found.profiles.pop(event.task.config, None)
                self.found.cached.discard(event.task.config)
            elif event.profile is not None:
                self.proven.add(event.worker)
                self.seconds[event.task.config] = event.end - event.start
                self.found.cached.discard(event.task.config)
                self.found.add(event.task.config, event.profile)
        return True

    def _on_worker_down(self, event: WorkerLost) -> None:
        """The configuration that the worker profiled gets no profile; its units will show whether it is at fault."""
        self.found.on_worker_down(event)
        if event.worker not in self.busy:
            return
        self.busy.discard(event.worker)
        self.losses += 1
        all_tried = not self.unprofiled and not self.cached and not self.busy
        if not self.seconds and (all_tried or self.losses > 2 * len(self.workers)):
            raise RegattaError(f"Workers die while they try the first batches: {event.worker} {event.reason}.")

    def next_tasks(self) -> list[tuple[str, Task]]:
        """A task for each idle worker that should have one."""
        tasks = []
        for worker in self.found.ready:
            if worker in self.busy or worker in self.companions or not self.train.get(worker):
                continue
            if self.wants_more():
                config = self.unprofiled.pop()
                self.busy.add(worker)
            elif self.cached and worker not in self.proven:
                config = self.cached.pop()
                self.busy.add(worker)
            elif self.busy and self.seconds and len(self.configs) >= len(self.workers):
                # In the run all workers are busy, so the workers that still profile must not have the machine alone.
                config = next(iter(self.seconds))
                self.companions.add(worker)
            else:
                continue
            evals = self.eval[worker]
            partition, eval_partition = self.train[worker][0], evals[0] if evals else None
            task = Task("pilot", config, self.configs[config], 0, partition, eval_partition=eval_partition)
            tasks.append((worker, task))
        return tasks

    def done(self) -> bool:
        """Whether all workers are up or gone for good, and none has anything left to profile."""
        all_there = set(self.workers) <= self.found.ready.keys() | self.found.lost
        unproven = [worker for worker in self.found.ready if self.train.get(worker) and worker not in self.proven]
        idle = not self.busy and not self.companions and not self.wants_more() and not (self.cached and unproven)
        return all_there and bool(self.found.ready) and idle

    def wants_more(self) -> bool:
        """Whether configurations are left, and profiling has not cost its share of the run that it predicts."""
        profiles = self.found.profiles.values()
        if not self.unprofiled or len(profiles) < 2 * len(self.workers):
            return bool(self.unprofiled)
        per_run = [p.train_seconds_per_row * self.rows + p.fixed_seconds * self.visits for p in profiles]
        predicted = sum(per_run) / len(per_run) * len(self.configs)
        return not self.spent_seconds > MAX_COST_SHARE * predicted  # also where no time is known (NaN)

    def check(self, metric: str) -> None:
        """Raise where no configuration can be trained, or where none reports the metric of the goal."""
        if self.configs and not self.seconds and self.found.failed:
            first = next(iter(self.found.failed.values()))
            if first.cause == "data":
                hint, text = None, "No configuration can be trained, because a partition cannot be read:"
            else:
                hint = f"Its values: {dict(first.task.values)}."
                text = f"No configuration can be trained. The first, {first.task.config}, failed:"
            raise UsageError(f"{text}\n{first.traceback or first.error}".rstrip(), hint=hint)
        profiles = self.found.profiles.values()
        names = sorted({name for profile in profiles for name in profile.metrics})
        # The workers that profiled may hold no partition to evaluate on.
        not_evaluated = self.eval_partitions and not any(profile.eval_rows for profile in profiles)
        if self.configs and metric not in names and not not_evaluated:
            raise UsageError(
                f"No model reports the metric {metric!r}; they report {', '.join(names)}.",
                candidates=nearest(metric, names),
                hint="Give metric= one of these, or let eval_fn return it.",
            )
