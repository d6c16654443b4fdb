"""The controller of a run: hears events, asks the hop scheduler, assigns units, writes the journal.

A unit is *finished* when its state can be read by the next worker, and *counts* when that state is durable and its
record is in the journal. Models hop on finished units; searches, reports and the deletion of older states wait
for units that count. The records of one configuration are written in the order of its course, whatever the order in
which its states became durable.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from regatta.configuration import Scalar, config_id
from regatta.data import Dataset
from regatta.engine.events import Event, StateDurable, Task, TaskDone, TaskFailed, WorkerLost, WorkerReady
from regatta.engine.journal import Journal, Record
from regatta.engine.pilot import PilotOutcome, run_pilots
from regatta.engine.record import RunRecord
from regatta.engine.workers.base import WorkerPool
from regatta.errors import UsageError
from regatta.plan.hop import Hopper
from regatta.plan.units import Unit
from regatta.search.base import Action, Goal, Report, Search, Stop, Train
from regatta.store.states import StateFolder, make_durable

Listener: TypeAlias = Callable[[RunRecord, Record], None]
Orders: TypeAlias = Callable[
    [str], Mapping[int, Sequence[int]] | None
]  # of a configuration: epoch -> partitions in order
KILLS = 3  # a configuration that takes so many workers with it, one after another, has failed


@dataclass
class _Entry:
    """A record that waits for its turn in the journal."""

    event: str
    fields: dict[str, Any]
    state: Path | None = None  # which must be durable first
    ready: bool = True
    spent: Path | None = None  # the state that nobody needs once this is durable


@dataclass
class _Course:
    """The way of one configuration through the run."""

    id: str
    values: Mapping[str, Scalar]
    epochs: int
    state: Path | None = None  # the newest that can be read
    visits: int = 0  # of the present epoch
    measured: dict[int, list[TaskDone]] = field(default_factory=dict)  # what each epoch's units found
    entries: deque[_Entry] = field(default_factory=deque)
    kills: int = 0  # workers lost since it last got on
    scheduled: bool = False
    failed: bool = False
    warned: bool = False


class Runner:
    """Runs one sweep to its end."""

    def __init__(
        self,
        *,
        folder: Path,
        header: Mapping[str, Any],
        dataset: Dataset,
        search: Search,
        goal: Goal,
        pool: WorkerPool,
        rule: str = "auto",
        orders: Orders = lambda config: None,
        listeners: Iterable[Listener] = (),
    ) -> None:
        self._train, self._eval = dataset.holders(pool.workers)
        self.record = RunRecord()
        self._states = StateFolder(folder / "states")
        self._states.folder.mkdir(exist_ok=True)  # the journal makes all names in the run's folder durable
        self._journal = Journal(folder / "journal.jsonl")
        self._folder = folder
        self._header = header
        self._dataset = dataset
        self._search = search
        self._goal = goal
        self._pool = pool
        self._rule = rule
        self._orders = orders
        self._listeners = list(listeners)
        self._courses: dict[str, _Course] = {}
        self._awaited: dict[Path, tuple[_Course, _Entry, str]] = {}  # states on their way to the disk
        self._epoch_states: dict[tuple[str, int], Path] = {}
        self._forgotten: set[tuple[str, ...]] = set()  # names of which people were warned
        self._hinted: set[str] = set()  # workers that know what probably comes next
        self._started = time.time()

    def run(self) -> RunRecord:
        """Train what the search asks for until it asks for no more."""
        try:
            self._write("run", **self._header)
            wanted = self._search.start(self._goal)
            outcome = self._try_out(wanted)
            self._hopper = self._scheduler(outcome)
            for worker, ready in outcome.ready.items():
                self._add_worker(worker, ready.info)
            self._act(wanted)
            for failure in outcome.failed.values():
                self._fail(failure)
            self._loop()
            self._write("end", **self._verdict())
        except KeyboardInterrupt:
            self._write("end", status="interrupted")
            raise
        except BaseException as error:
            self._write("end", status="failed", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            self._pool.close()
            self._journal.close()
        return self.record

    def _try_out(self, wanted: Iterable[Action]) -> PilotOutcome:
        """Pilots of all that the search begins with; their configurations are in the journal first."""
        configs = {}
        for action in wanted:
            if isinstance(action, Train):
                course = self._course(action)
                configs[course.id] = course.values
        return run_pilots(self._pool, self._dataset, configs, self._goal.epochs, self._goal.metric, self._hear_pilot)

    def _hear_pilot(self, event: Event) -> None:
        if isinstance(event, TaskDone) and event.pilot is not None:
            self._write(
                "pilot", config=event.task.config, worker=event.worker, start=event.start, end=event.end,
                **{k: v for k, v in vars(event.pilot).items() if k not in ("metrics", "forgotten")},
            )  # fmt: skip
            self._warn_of_forgotten(event.task.config, event.pilot.forgotten)
        elif isinstance(event, WorkerLost):
            self._write("worker", worker=event.worker, state="down", reason=event.reason)

    def _warn_of_forgotten(self, config: str, names: tuple[str, ...]) -> None:
        if names and names not in self._forgotten:  # many models are of one kind
            self._forgotten.add(names)
            text = (
                f"{config}: training changes {', '.join(names)}, which no state_dict holds: each unit begins with the "
                "first value again. Make it a buffer, or give its module get_extra_state and set_extra_state."
            )
            self._write("note", level="warning", config=config, text=text)

    def _scheduler(self, outcome: PilotOutcome) -> Hopper:
        return Hopper(
            len(self._dataset.train),
            len(self._dataset.eval),
            estimates=outcome.estimates,
            rule=self._rule,
            seed=self._goal.seed,
        )

    def _loop(self) -> None:
        self._dispatch()
        while not self._hopper.done() or self._awaited:
            for event in self._pool.events():
                self._hear(event)
            self._dispatch()

    def _hear(self, event: Event) -> None:
        if isinstance(event, TaskDone):
            self._finish(event)
        elif isinstance(event, StateDurable):
            self._count(event.path, event.hash)
        elif isinstance(event, TaskFailed):
            self._fail(event)
            self._hopper.give_back(event.worker)
        elif isinstance(event, WorkerReady):
            self._add_worker(event.worker, event.info)
        else:
            self._lose(event)

    def _dispatch(self) -> None:
        """Give idle workers their units, and busy ones a hint of what comes next."""
        for assignment in self._hopper.assign(self._now()):
            unit, worker = assignment.unit, assignment.worker
            self._write("start", worker=worker, **_place(unit))
            self._hinted.discard(worker)
            self._pool.submit(worker, self._task(unit))
        for worker in self._hopper.running():
            if worker not in self._hinted:
                self._hint(worker)

    def _hint(self, worker: str) -> None:
        """Let a busy worker read the state that it will probably need next."""
        upcoming = self._hopper.likely_next(worker)
        state = self._state_for(upcoming) if upcoming is not None else None
        if state is not None:
            self._hinted.add(worker)
            self._pool.prefetch(worker, state)

    def _task(self, unit: Unit) -> Task:
        course = self._courses[unit.model]
        partitions = len(self._dataset.train)
        if unit.kind == "eval":
            state = self._state_for(unit)
            return Task("eval", course.id, course.values, unit.epoch, unit.partition, state)
        return Task(
            "train", course.id, course.values, unit.epoch, unit.partition, course.state,
            self._states.path(course.id, unit.epoch, course.visits + 1), course.visits + 1 == partitions,
        )  # fmt: skip

    def _state_for(self, unit: Unit) -> Path | None:
        if unit.kind == "eval":
            return self._epoch_states[unit.model, unit.epoch]
        return self._courses[unit.model].state

    def _finish(self, event: TaskDone) -> None:
        """A unit is done: its model may hop on, and its record waits for the state to be durable."""
        task = event.task
        course = self._courses[task.config]
        finished = self._hopper.finish(event.worker, self._now(), event.end - event.start)
        course.measured.setdefault(task.epoch, []).append(event)
        entry = _Entry("unit", _unit_fields(event, self._folder))
        course.entries.append(entry)
        if task.state_out is not None:
            entry.state, entry.ready = task.state_out, False
            self._awaited[task.state_out] = (course, entry, event.worker)
            course.kills = 0  # it can be trained; what died under it died of something else
            entry.spent = task.state_in if course.visits > 0 else None  # the states at ends of epochs stay
            course.state, course.visits = task.state_out, course.visits + 1
        if finished.trained:
            course.visits = 0
            if task.state_out is not None:
                self._epoch_states[course.id, task.epoch] = task.state_out
        if finished.evaluated:
            course.entries.append(_Entry("report", self._summary(course, task.epoch)))
        self._settle(course)

    def _count(self, path: Path, digest: str) -> None:
        awaited = self._awaited.pop(path, None)
        if awaited is not None:
            course, entry, _ = awaited
            entry.fields["hash"] = digest
            entry.ready = True
            self._settle(course)

    def _settle(self, course: _Course) -> None:
        """Write what of a configuration is due, in order; then the search may hear of it."""
        while course.entries and course.entries[0].ready:
            entry = course.entries.popleft()
            then = None if entry.spent is None else partial(self._states.drop, entry.spent)
            self._write(entry.event, then, **entry.fields)
            if entry.event == "report":
                self._report(course, entry.fields)

    def _report(self, course: _Course, fields: Mapping[str, Any]) -> None:
        metrics, epoch = fields["metrics"], fields["epoch"]
        if course.failed:  # in a later epoch, while this one was still judged
            return
        if self._goal.metric not in metrics:
            error = f"reported {', '.join(metrics) or 'nothing'}, but not the metric {self._goal.metric!r}"
            self._give_up(course, {"epoch": epoch}, error, "")
            return
        broken = [name for name, value in metrics.items() if not math.isfinite(value)]
        if broken and not course.warned:
            course.warned = True
            text = f"{course.id}: {', '.join(f'{name} is {metrics[name]}' for name in broken)} after epoch {epoch}"
            self._write("note", level="warning", config=course.id, text=text)
        self._act(self._search.hear(Report(course.id, course.values, epoch, metrics)))

    def _summary(self, course: _Course, epoch: int) -> dict[str, Any]:
        """The metrics of an epoch: means over its units, weighted by rows; the same whatever came first."""
        sums: dict[str, tuple[float, int]] = {}
        for done in sorted(course.measured.pop(epoch), key=lambda done: (done.task.kind, done.task.partition)):
            for name, value in done.metrics.items():
                total, seen = sums.get(name, (0.0, 0))
                sums[name] = total + value * done.rows, seen + done.rows
        metrics = {name: total / max(1, seen) for name, (total, seen) in sorted(sums.items())}
        return {"config": course.id, "epoch": epoch, "metrics": metrics}

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Stop):
                self._stop(action.config)
            else:
                course = self._course(action)
                if course.scheduled:
                    self._hopper.extend_model(course.id, course.epochs)
                else:
                    course.scheduled = True
                    order = self._orders(course.id)
                    self._hopper.add_model(course.id, course.epochs, order=order, most=action.most)

    def _course(self, action: Train) -> _Course:
        if action.parent is not None:
            raise UsageError(f"The search wants {action.config} to start from {action.parent}; only fresh starts work.")
        name = config_id(action.config)
        course = self._courses.get(name)
        if course is None or course.epochs != action.epochs:
            self._write("config", config=name, values=action.config, epochs=action.epochs, parent=action.parent)
        if course is None:
            course = self._courses[name] = _Course(name, action.config, action.epochs)
        course.epochs = action.epochs
        return course

    def _stop(self, config: str) -> None:
        self._write("stop", config=config)
        self._hopper.stop_model(config)

    def _fail(self, event: TaskFailed) -> None:
        """The configuration's own fault: it ends, the others go on."""
        event.check_scope()
        place = {"worker": event.worker, **_task_place(event.task)}
        self._give_up(self._courses[event.task.config], place, event.error, event.traceback)

    def _give_up(self, course: _Course, place: dict[str, Any], error: str, traceback: str) -> None:
        self._write("failed", **{**place, "config": course.id}, error=error, traceback=traceback)
        if course.failed:  # by another of its units
            return
        course.failed = True
        self._hopper.stop_model(course.id)
        self._act(self._search.hear(Report(course.id, course.values, place["epoch"], {}, failed=True)))

    def _add_worker(self, worker: str, info: Mapping[str, Any]) -> None:
        train, held = list(self._train[worker]), list(self._eval[worker])
        self._write("worker", worker=worker, state="up", **info, train=train, eval=held)
        self._hopper.add_worker(worker, train, held)

    def _lose(self, event: WorkerLost) -> None:
        """A worker is gone: its unit is done again elsewhere, its states are made durable from here."""
        self._write("worker", worker=event.worker, state="down", reason=event.reason)
        self._hinted.discard(event.worker)
        if event.worker not in self._hopper.workers():
            return
        unit = self._hopper.remove_worker(event.worker)
        for path in [path for path, (_, _, worker) in self._awaited.items() if worker == event.worker]:
            self._count(path, make_durable(path)[0])
        if unit is None:
            return
        course = self._courses[unit.model]
        course.kills += 1
        if course.kills >= KILLS:
            error = f"took {KILLS} workers with it; the last, {event.worker}, {event.reason}"
            self._give_up(course, {"worker": event.worker, **_place(unit)}, error, "")

    def _verdict(self) -> dict[str, Any]:
        configs = self.record.configs.values()
        if configs and all(config.error is not None for config in configs):
            return {"status": "failed", "error": "every configuration failed"}
        return {"status": "done"}

    def _write(self, event: str, then: Callable[[], None] | None = None, **fields: Any) -> None:
        line = self._journal.append(event, then, **fields)
        self.record.apply(line)
        for listener in self._listeners:
            listener(self.record, line)

    def _now(self) -> float:
        return time.time() - self._started


def _place(unit: Unit) -> dict[str, Any]:
    return {"kind": unit.kind, "config": unit.model, "epoch": unit.epoch, "partition": unit.partition}


def _unit_fields(event: TaskDone, folder: Path) -> dict[str, Any]:
    task = event.task
    fields = {k: v for k, v in vars(event).items() if k not in ("task", "pilot")}
    state = None if task.state_out is None else str(task.state_out.relative_to(folder))
    return {**_task_place(task), **fields, "state": state}


def _task_place(task: Task) -> dict[str, Any]:
    return {"kind": task.kind, "config": task.config, "epoch": task.epoch, "partition": task.partition}
