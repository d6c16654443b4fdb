"""The beginning of a run: pilots of what the search begins with, of packs and of groups; or what the journal knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from regatta.cluster import Cluster
from regatta.data import Dataset
from regatta.engine.controller.run_log import RunLog
from regatta.engine.controller.trials import Trials
from regatta.engine.controller.watchdog import Watchdog
from regatta.engine.messages import (
    Event,
    TaskDone,
    TaskFailed,
    WorkerLost,
)
from regatta.engine.planning.planner import Planner, available_workers
from regatta.engine.planning.replanner import Replanner
from regatta.engine.profiling.cache import ProfileCache
from regatta.engine.profiling.groups import WIDTH, cached_communication, profile_groups
from regatta.engine.profiling.models import (
    Configs,
    ModelProfiles,
    cached_models,
    profile_models,
    told,
)
from regatta.engine.profiling.packs import cached_rates, profile_packs
from regatta.engine.profiling.results import ProfilingResults, recalled
from regatta.engine.workers.base import WorkerPool
from regatta.journal.journal import Record
from regatta.search.base import Goal, Train

FIRST_UNITS = 10  # first batches may take as long as so many units: they pay for imports, reading and compiling

Hooks = tuple[Callable[[Event], None], Callable[[str], None], Callable[[], None]]  # heard, begun, between
NO_HOOKS: Hooks = (lambda event: None, lambda worker: None, lambda: None)


@dataclass(frozen=True)
class ProfilingSession:
    """What a plan needs to know of the models that a search begins with; of packs and groups only where they may pay.

    What the profiles know is not found out again, but for one pilot of each worker.
    """

    dataset: Dataset
    goal: Goal
    configs: Configs
    wanted: Mapping[str, Train]
    planner: Planner
    cluster: Cluster
    profiles: ProfileCache | None = None

    def known(self, pool: WorkerPool) -> ProfilingResults | None:
        """The answer without a worker, where profiles know all of it."""
        if self.profiles is None or not pool.workers:
            return None
        outcome = cached_models(pool.workers, self.dataset, self.configs, self.goal, self.profiles)
        if outcome is None:
            return None
        found = self._begun(outcome)
        if self._packs(pool):
            rates = cached_rates(
                len(pool.workers), self.dataset, self.configs, self.goal.epochs, outcome, self.profiles
            )
            if rates is None:
                return None
            found.rates = rates
        if self._groups(pool, found):
            links = cached_communication(self.configs, found, self.profiles)
            if links is None:
                return None
            found.links = links
        return found

    def try_out(self, pool: WorkerPool, meetings: Path, hooks: Hooks = NO_HOOKS) -> ProfilingResults:
        """The answer of the workers, which are started for it."""
        dataset, configs, goal, profiles = self.dataset, self.configs, self.goal, self.profiles
        found = self._begun(profile_models(pool, dataset, configs, goal.epochs, goal.metric, *hooks, profiles=profiles))
        if self._packs(pool):
            found.rates = profile_packs(pool, dataset, configs, goal.epochs, found.outcome, *hooks, profiles=profiles)
        if self._groups(pool, found):
            found.links = profile_groups(pool, dataset, configs, found, meetings, *hooks, profiles=profiles)
        return found

    def _begun(self, outcome: ModelProfiles) -> ProfilingResults:
        found = ProfilingResults(outcome)
        found.learn_builds(self.configs)
        return found

    def _packs(self, pool: WorkerPool) -> bool:
        return self.planner.options.pack is not False and pool.packs

    def _groups(self, pool: WorkerPool, found: ProfilingResults) -> bool:
        return self.planner.groups_may_pay(found, self.wanted, available_workers(pool, self.cluster, found.outcome))


class RunProfiler:
    """Starts the workers of a run and learns what units cost, writing down what it learns."""

    def __init__(
        self, pool: WorkerPool, dataset: Dataset, goal: Goal, run_log: RunLog, watchdog: Watchdog,
        interrupted: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._pool, self._dataset, self._goal = pool, dataset, goal
        self._run_log, self._watchdog = run_log, watchdog
        self._interrupted = interrupted
        self._packed: set[str] = set()  # builds of which packs were tried now
        self._grouped: set[str] = set()  # and groups
        self.under_way = False

    def run(
        self,
        trials: Trials,
        history: Sequence[Record],
        wanted: Mapping[str, Train],
        replanner: Replanner,
        profiles: ProfileCache | None,
    ) -> ProfilingResults:
        """Pilots of all that the search begins with; where it is known how long units take, none are needed."""
        if any(unit.kind == "train" for unit in self._run_log.record.units):
            self._pool.start()
            return recalled(self._dataset, history, {trial.id: trial.values for trial in trials})
        configs = {trial.id: trial.values for trial in trials if not trial.failed and not trial.stopped}
        hooks = self._hear, partial(self._watchdog.begin, units=FIRST_UNITS), self._attend
        self.under_way = True
        try:
            planner, cluster = replanner.planner, replanner.cluster
            inquiry = ProfilingSession(self._dataset, self._goal, configs, wanted, planner, cluster, profiles)
            found = inquiry.try_out(self._pool, replanner.meetings, hooks)
            self._write_cached(found)
            return found
        finally:
            self.under_way = False

    def _attend(self) -> None:
        if self._interrupted():
            raise KeyboardInterrupt  # nothing is on its way
        self._watchdog.end_overdue(self._pool, "its first batches took", FIRST_UNITS)

    def _hear(self, event: Event) -> None:
        if isinstance(event, TaskDone | TaskFailed | WorkerLost):
            self._watchdog.end(event.worker)
        if isinstance(event, TaskDone) and event.profile is not None:
            self._write("pilot", event, **told(event.profile))
            self._run_log.warn_of_forgotten(event.task.config, event.profile.forgotten)
        elif isinstance(event, TaskDone) and event.pack_profile is not None:
            self._packed.add(event.pack_profile.build)
            self._write("packs", event, **vars(event.pack_profile))
        elif isinstance(event, TaskDone) and event.group_profile is not None:
            self._grouped.add(event.group_profile.build)
            self._write("groups", event, **vars(event.group_profile))
        elif isinstance(event, WorkerLost):
            self._run_log.write("worker", worker=event.worker, state="down", reason=event.reason)

    def _write_cached(self, found: ProfilingResults) -> None:
        """What earlier runs have told: a resumed run needs it too."""
        for config in found.outcome.cached:
            self._run_log.write("pilot", None, config=config, cached=True, **told(found.outcome.results[config]))
        for build, rate in found.rates.items():
            if build not in self._packed:
                self._run_log.write("packs", None, build=build, cached=True, **vars(rate))
        for build, link in found.links.items():
            if build not in self._grouped:
                self._run_log.write("groups", None, build=build, cached=True, width=WIDTH, ratio=link.inside)

    def _write(self, kind: str, event: TaskDone, **found: object) -> None:
        place = {"config": event.task.config, "worker": event.worker, "start": event.start, "end": event.end}
        self._run_log.write(kind, None, **place, **found)
