"""The beginning of a run: pilots of what the search begins with, and of packs; or what the journal knows of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from regatta.data import Dataset
from regatta.engine.chronicle import Chronicle
from regatta.engine.course import Courses
from regatta.engine.events import Event, TaskDone, TaskFailed, WorkerLost
from regatta.engine.journal import Record
from regatta.engine.pack_pilots import builds_of, recalled_rates, run_pack_pilots
from regatta.engine.packing import Packer
from regatta.engine.patience import Patience
from regatta.engine.pilot import PilotOutcome, recalled_pilots, run_pilots
from regatta.engine.workers.base import WorkerPool
from regatta.plan.packs import WORTHWHILE
from regatta.search.base import Goal

FIRST_UNITS = 10  # first batches may take as long as so many units: they pay for imports, reading and compiling


class TryOut:
    """Starts the workers and learns what units cost; the packer learns which packs pay."""

    def __init__(
        self,
        pool: WorkerPool,
        dataset: Dataset,
        goal: Goal,
        chronicle: Chronicle,
        patience: Patience,
        packer: Packer,
        interrupted: Callable[[], bool],
    ) -> None:
        self._pool, self._dataset, self._goal = pool, dataset, goal
        self._chronicle, self._patience, self._packer = chronicle, patience, packer
        self._interrupted = interrupted
        self.under_way = False

    def run(self, courses: Courses, history: Sequence[Record]) -> PilotOutcome:
        """Pilots of all that the search begins with; where it is known how long units take, none are needed."""
        if any(unit.kind == "train" for unit in self._chronicle.record.units):
            self._packer.rates = recalled_rates(history)
            self._pool.start()
            outcome = recalled_pilots(self._dataset, history)
        else:
            self.under_way = True
            try:
                outcome = self._try(courses)
            finally:
                self.under_way = False
        self._packer.builds = builds_of(outcome, {course.id: course.values for course in courses})
        return outcome

    def _try(self, courses: Courses) -> PilotOutcome:
        pool, dataset, epochs = self._pool, self._dataset, self._goal.epochs
        configs = {course.id: course.values for course in courses if not course.failed and not course.stopped}
        watched = self._hear, partial(self._patience.begin, units=FIRST_UNITS), self._attend
        outcome = run_pilots(pool, dataset, configs, epochs, self._goal.metric, *watched)
        if self._packer.wanted is None:
            self._packer.rates = run_pack_pilots(pool, dataset, configs, epochs, outcome, *watched)
            for rate in self._packer.rates.values():
                if rate.gain < WORTHWHILE:
                    told = f"{rate.members} models side by side are {rate.gain:.1f}x as fast as one after another"
                    self._chronicle.note("info", f"{told}: such models are trained one by one.")
        return outcome

    def _attend(self) -> None:
        if self._interrupted():
            raise KeyboardInterrupt  # nothing is on its way
        self._patience.end_overdue(self._pool, "its first batches took", FIRST_UNITS)

    def _hear(self, event: Event) -> None:
        if isinstance(event, TaskDone | TaskFailed | WorkerLost):
            self._patience.end(event.worker)
        if isinstance(event, TaskDone) and event.pilot is not None:
            found = {k: v for k, v in vars(event.pilot).items() if k not in ("metrics", "forgotten")}
            self._write("pilot", event, **found)
            self._chronicle.warn_of_forgotten(event.task.config, event.pilot.forgotten)
        elif isinstance(event, TaskDone) and event.packed is not None:
            self._write("packs", event, **vars(event.packed))
        elif isinstance(event, WorkerLost):
            self._chronicle.write("worker", worker=event.worker, state="down", reason=event.reason)

    def _write(self, kind: str, event: TaskDone, **found: object) -> None:
        place = {"config": event.task.config, "worker": event.worker, "start": event.start, "end": event.end}
        self._chronicle.write(kind, None, **place, **found)
