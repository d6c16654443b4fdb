"""Profiling before a run: of the models that the search begins with, and of packs and groups where they may pay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from regatta.cluster import Cluster
from regatta.engine.controller.run_log import RunLog
from regatta.engine.controller.trials import Trials
from regatta.engine.controller.watchdog import Watchdog
from regatta.engine.messages import Event, TaskDone, TaskFailed, WorkerLost
from regatta.engine.planning.planner import Planner, available_workers
from regatta.engine.planning.replanner import Replanner
from regatta.engine.profiling.groups import WIDTH, cached_communication, profile_groups
from regatta.engine.profiling.models import (
    NO_HOOKS,
    ProfilingHooks,
    ProfilingRequest,
    ProfilingResults,
    cached_models,
    models_from_journal,
    profile_models,
    to_fields,
)
from regatta.engine.profiling.packs import builds_of, cached_pack_rates, profile_packs, rates_from_journal
from regatta.engine.workers.base import WorkerPool
from regatta.journal.journal_file import Record
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.search.base import Train

FIRST_UNITS = 10  # the first batches may take as long as this many units: they pay for imports, reading and compiling


@dataclass(frozen=True)
class ProfilingSession:
    """Finds what a plan needs to know; packs and groups are profiled only where they may pay.

    What the cache knows is not measured again, except that every worker profiles one model.
    """

    request: ProfilingRequest
    wanted: Mapping[str, Train]
    planner: Planner
    cluster: Cluster

    def cached_results(self, pool: WorkerPool) -> ProfilingResults | None:
        """The results without a worker, where the cache has all of them."""
        if self.request.cache is None or not pool.workers:
            return None
        models = cached_models(pool.workers, self.request)
        if models is None:
            return None
        results = ProfilingResults(models, builds=builds_of(models, self.request.configs))
        if self._profiles_packs(pool):
            rates = cached_pack_rates(len(pool.workers), self.request, models)
            if rates is None:
                return None
            results.pack_rates = rates
        if self._profiles_groups(pool, results):
            communication = cached_communication(self.request, models)
            if communication is None:
                return None
            results.communication = communication
        return results

    def run(self, pool: WorkerPool, rendezvous: Path, hooks: ProfilingHooks = NO_HOOKS) -> ProfilingResults:
        """Start the pool's workers and profile on them."""
        models = profile_models(pool, self.request, hooks)
        results = ProfilingResults(models, builds=builds_of(models, self.request.configs))
        if self._profiles_packs(pool):
            results.pack_rates = profile_packs(pool, self.request, models, hooks)
        if self._profiles_groups(pool, results):
            results.communication = profile_groups(pool, self.request, models, rendezvous, hooks)
        return results

    def _profiles_packs(self, pool: WorkerPool) -> bool:
        return self.planner.options.pack is not False and pool.packs

    def _profiles_groups(self, pool: WorkerPool, results: ProfilingResults) -> bool:
        return self.planner.groups_may_pay(results, self.wanted, available_workers(pool, self.cluster, results.models))


@dataclass(eq=False)
class RunProfiler:
    """Starts the workers of a run, profiles its trials, and writes the results into the run log."""

    request: ProfilingRequest
    replanner: Replanner
    run_log: RunLog
    watchdog: Watchdog
    is_interrupted: Callable[[], bool]

    def __post_init__(self) -> None:
        self._pool = self.replanner.pool
        self._measured_packs: set[str] = set()  # builds, measured now rather than found in the cache
        self._measured_groups: set[str] = set()
        self.under_way = False

    def run(self, trials: Trials, history: Sequence[Record], wanted: Mapping[str, Train]) -> ProfilingResults:
        """Profile the trials; a resumed run whose units show what they cost reads its journal instead."""
        if any(unit.kind == "train" for unit in self.run_log.record.units):
            self._pool.start()
            configs = {trial.id: trial.values for trial in trials}
            models = models_from_journal(self.request.dataset, history)
            groups = {line["build"]: Communication(line["ratio"]) for line in history if line["event"] == "groups"}
            return ProfilingResults(models, rates_from_journal(history), groups, builds_of(models, configs))
        configs = {trial.id: trial.values for trial in trials if not trial.failed and not trial.stopped}
        replanner, request = self.replanner, replace(self.request, configs=configs)
        session = ProfilingSession(request, wanted, replanner.planner, replanner.cluster)
        hooks = ProfilingHooks(self._on_event, partial(self.watchdog.start_unit, units=FIRST_UNITS), self._between)
        self.under_way = True
        try:
            results = session.run(self._pool, replanner.rendezvous, hooks)
            self._write_cached(results)
            return results
        finally:
            self.under_way = False

    def _between(self) -> None:
        if self.is_interrupted():
            raise KeyboardInterrupt  # no state is being written
        self.watchdog.end_overdue(self._pool, "its first batches took", FIRST_UNITS)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, TaskDone | TaskFailed | WorkerLost):
            self.watchdog.end_unit(event.worker)
        if isinstance(event, TaskDone) and event.profile is not None:
            self._write("pilot", event, **to_fields(event.profile))
            self.run_log.warn_of_unsaved(event.task.config, event.profile.forgotten)
        elif isinstance(event, TaskDone) and event.pack_profile is not None:
            self._measured_packs.add(event.pack_profile.build)
            self._write("packs", event, **vars(event.pack_profile))
        elif isinstance(event, TaskDone) and event.group_profile is not None:
            self._measured_groups.add(event.group_profile.build)
            self._write("groups", event, **vars(event.group_profile))
        elif isinstance(event, WorkerLost):
            self.run_log.write("worker", worker=event.worker, state="down", reason=event.reason)

    def _write_cached(self, results: ProfilingResults) -> None:
        """Write the results that came from the cache: a resumed run needs them too."""
        for config in results.models.cached:
            fields = to_fields(results.models.profiles[config])
            self.run_log.write("pilot", None, config=config, cached=True, **fields)
        for build, rate in results.pack_rates.items():
            if build not in self._measured_packs:
                self.run_log.write("packs", None, build=build, cached=True, **vars(rate))
        for build, communication in results.communication.items():
            if build not in self._measured_groups:
                ratio = communication.inside
                self.run_log.write("groups", None, build=build, cached=True, width=WIDTH, ratio=ratio)

    def _write(self, kind: str, event: TaskDone, **fields: object) -> None:
        place = {"config": event.task.config, "worker": event.worker, "start": event.start, "end": event.end}
        self.run_log.write(kind, None, **place, **fields)
