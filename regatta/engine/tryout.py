"""The beginning of a run: pilots of what the search begins with, of packs and of groups; or what the journal knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from regatta.cluster import Cluster
from regatta.data import Dataset
from regatta.engine.chronicle import Chronicle
from regatta.engine.course import Courses
from regatta.engine.events import Event, TaskDone, TaskFailed, WorkerLost
from regatta.engine.findings import Findings, recalled
from regatta.engine.group_pilots import WIDTH, known_links, run_group_pilots
from regatta.engine.journal import Record
from regatta.engine.pack_pilots import cached_rates, run_pack_pilots
from regatta.engine.patience import Patience
from regatta.engine.pilot import Configs, cached_pilots, run_pilots, told
from regatta.engine.planning import Planner, workforce
from regatta.engine.profiles import Profiles
from regatta.engine.steering import Steering
from regatta.engine.workers.base import WorkerPool
from regatta.search.base import Goal, Train

FIRST_UNITS = 10  # first batches may take as long as so many units: they pay for imports, reading and compiling

Hooks = tuple[Callable[[Event], None], Callable[[str], None], Callable[[], None]]  # heard, begun, between
NO_HOOKS: Hooks = (lambda event: None, lambda worker: None, lambda: None)


def try_out(
    pool: WorkerPool,
    dataset: Dataset,
    goal: Goal,
    configs: Configs,
    wanted: Mapping[str, Train],
    planner: Planner,
    cluster: Cluster,
    meetings: Path,
    profiles: Profiles | None = None,
    hooks: Hooks = NO_HOOKS,
) -> Findings:
    """Start the workers and find out what a plan needs to know: of packs and groups only where they may pay.

    What `profiles` know is not found out again, but for one pilot of each worker.
    """
    found = Findings(run_pilots(pool, dataset, configs, goal.epochs, goal.metric, *hooks, profiles=profiles))
    found.learn_builds(configs)
    if planner.wishes.pack is not False and pool.packs:
        found.rates = run_pack_pilots(pool, dataset, configs, goal.epochs, found.outcome, *hooks, profiles=profiles)
    if planner.groups_may_pay(found, wanted, workforce(pool, cluster, found.outcome)):
        found.links = run_group_pilots(pool, dataset, configs, found, meetings, *hooks, profiles=profiles)
    return found


def known_already(
    pool: WorkerPool,
    dataset: Dataset,
    goal: Goal,
    configs: Configs,
    wanted: Mapping[str, Train],
    planner: Planner,
    cluster: Cluster,
    profiles: Profiles,
) -> Findings | None:
    """The same without a worker, where all of it is known."""
    outcome = cached_pilots(pool.workers, dataset, configs, goal.epochs, profiles) if pool.workers else None
    if outcome is None:
        return None
    found = Findings(outcome)
    found.learn_builds(configs)
    if planner.wishes.pack is not False and pool.packs:
        rates = cached_rates(len(pool.workers), dataset, configs, goal.epochs, outcome, profiles)
        if rates is None:
            return None
        found.rates = rates
    if planner.groups_may_pay(found, wanted, workforce(pool, cluster, found.outcome)):
        links = known_links(configs, found, profiles)
        if links is None:
            return None
        found.links = links
    return found


class TryOut:
    """Starts the workers of a run and learns what units cost, writing down what it learns."""

    def __init__(
        self, pool: WorkerPool, dataset: Dataset, goal: Goal, chronicle: Chronicle, patience: Patience,
        interrupted: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._pool, self._dataset, self._goal = pool, dataset, goal
        self._chronicle, self._patience = chronicle, patience
        self._interrupted = interrupted
        self._packed: set[str] = set()  # builds of which packs were tried now
        self._grouped: set[str] = set()  # and groups
        self.under_way = False

    def run(
        self,
        courses: Courses,
        history: Sequence[Record],
        wanted: Mapping[str, Train],
        steering: Steering,
        profiles: Profiles | None,
    ) -> Findings:
        """Pilots of all that the search begins with; where it is known how long units take, none are needed."""
        if any(unit.kind == "train" for unit in self._chronicle.record.units):
            self._pool.start()
            return recalled(self._dataset, history, {course.id: course.values for course in courses})
        configs = {course.id: course.values for course in courses if not course.failed and not course.stopped}
        hooks = self._hear, partial(self._patience.begin, units=FIRST_UNITS), self._attend
        self.under_way = True
        try:
            found = try_out(
                self._pool, self._dataset, self._goal, configs, wanted, steering.planner, steering.cluster,
                steering.meetings, profiles, hooks,
            )  # fmt: skip
            self._write_cached(found)
            return found
        finally:
            self.under_way = False

    def _attend(self) -> None:
        if self._interrupted():
            raise KeyboardInterrupt  # nothing is on its way
        self._patience.end_overdue(self._pool, "its first batches took", FIRST_UNITS)

    def _hear(self, event: Event) -> None:
        if isinstance(event, TaskDone | TaskFailed | WorkerLost):
            self._patience.end(event.worker)
        if isinstance(event, TaskDone) and event.pilot is not None:
            self._write("pilot", event, **told(event.pilot))
            self._chronicle.warn_of_forgotten(event.task.config, event.pilot.forgotten)
        elif isinstance(event, TaskDone) and event.packed is not None:
            self._packed.add(event.packed.build)
            self._write("packs", event, **vars(event.packed))
        elif isinstance(event, TaskDone) and event.grouped is not None:
            self._grouped.add(event.grouped.build)
            self._write("groups", event, **vars(event.grouped))
        elif isinstance(event, WorkerLost):
            self._chronicle.write("worker", worker=event.worker, state="down", reason=event.reason)

    def _write_cached(self, found: Findings) -> None:
        """What earlier runs have told: a resumed run needs it too."""
        for config in found.outcome.cached:
            self._chronicle.write("pilot", None, config=config, cached=True, **told(found.outcome.results[config]))
        for build, rate in found.rates.items():
            if build not in self._packed:
                self._chronicle.write("packs", None, build=build, cached=True, **vars(rate))
        for build, link in found.links.items():
            if build not in self._grouped:
                self._chronicle.write("groups", None, build=build, cached=True, width=WIDTH, ratio=link.inside)

    def _write(self, kind: str, event: TaskDone, **found: object) -> None:
        place = {"config": event.task.config, "worker": event.worker, "start": event.start, "end": event.end}
        self._chronicle.write(kind, None, **place, **found)
