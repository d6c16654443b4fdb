"""The loop of the controller: takes events of workers, gives units to workers, and writes the journal.

A unit is *finished* when the next worker can read its state. It *counts* when that state is durable and its record is
in the journal. Models hop after finished units. Searches, reports and the deletion of older states wait for units that
count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass, replace
from pathlib import Path
from typing import Any

from regatta.engine.controller.control_server import ControlServer, JoiningWorker
from regatta.engine.controller.partition_owners import PartitionOwners
from regatta.engine.controller.pending_records import PendingRecords
from regatta.engine.controller.requests import check_request, read_requests, write_answer
from regatta.engine.controller.run_log import RunLog
from regatta.engine.controller.settings import RunSettings
from regatta.engine.controller.state_files import StateFiles
from regatta.engine.controller.trial_scheduler import TrialScheduler
from regatta.engine.controller.trials import Trial, Trials, summary
from regatta.engine.controller.watchdog import DiskPause, Watchdog
from regatta.engine.messages import (
    DiskFull,
    Event,
    PackDone,
    StateDurable,
    StateLost,
    TaskDone,
    TaskFailed,
    TaskReturned,
    WorkerLost,
    WorkerReady,
)
from regatta.engine.planning.replanner import Replanner
from regatta.engine.workers.base import WorkerPool
from regatta.plan.schedule.units import Unit
from regatta.store.states.state_files import make_durable

MAX_WORKERS_LOST = 3  # a trial that loses this many workers, without a finished unit in between, has failed


@dataclass(eq=False)
class EventLoop:
    """Trains what the search asks for until it asks for no more."""

    settings: RunSettings
    run_log: RunLog
    state_files: StateFiles
    trials: Trials
    replanner: Replanner
    watchdog: Watchdog
    disk: DiskPause
    interrupted: Callable[[], bool]
    scheduler: TrialScheduler
    ready: InitVar[Mapping[str, WorkerReady]]  # workers that are up already; others may come up later

    def __post_init__(self, ready: Mapping[str, WorkerReady]) -> None:
        self._pending = PendingRecords(self.run_log, self.state_files, self._report_epoch, self._delete_state)
        self._hinted: set[str] = set()  # busy workers that have been given a state to prefetch
        self._started = time.time()
        self._owners = PartitionOwners(self.settings.dataset, *self.replanner.teams())
        self._add_workers(ready)

    @property
    def _pool(self) -> WorkerPool:
        return self.replanner.pool  # another one whenever workers are put into groups

    def run(self, control: ControlServer) -> None:
        self._serve(control)
        self._dispatch()
        while self._pending or not (self.interrupted() or self.scheduler.hopper.done()):
            for event in self._pool.events():
                self._on_event(event)
            self._serve(control)
            self._dispatch()

    def schedule(self, failures: Iterable[TaskFailed]) -> None:
        """Schedule the trials of the run, some of which may have failed when they were profiled."""
        self.scheduler.want([trial for trial in self.trials if not trial.scheduled])
        for failure in failures:
            self._on_task_failed(failure)
        self.scheduler.add_waiting(self._pending)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, TaskDone | TaskFailed) and event.task.kind == "pilot":
            return  # profiling by a group that was given up
        if isinstance(event, TaskDone | PackDone):
            self._on_unit_done(event)
        elif isinstance(event, StateDurable):
            self._pending.on_state_durable(event.path, event.hash)
        elif isinstance(event, StateLost):
            self._on_state_lost(event)
        elif isinstance(event, TaskFailed):
            self._on_task_failed(event)
        elif isinstance(event, TaskReturned):
            self._end_unit(event.worker)
            self.scheduler.hopper.give_back(event.worker)
        elif isinstance(event, DiskFull):
            self.disk.begin(event.error)
        elif isinstance(event, WorkerReady):
            self._on_worker_up(event.worker, event.info)
        else:
            self._on_worker_lost(event)

    def _dispatch(self) -> None:
        """Give idle workers their units, and tell busy ones which state they will probably need next."""
        if not self.interrupted() and self.replanner.replan(self.scheduler.hopper, self.trials):
            self.scheduler.split_unplanned()
        self.scheduler.add_waiting(self._pending)
        if self.interrupted() or self.watchdog.disk_is_full or not self._regroup():
            return
        hopper = self.scheduler.hopper
        while assignments := hopper.assign(self._now()):
            for assignment in assignments:
                self._start_unit(assignment.worker, assignment.unit)
        for worker in hopper.running():
            if worker not in self._hinted:
                self._hint(worker)

    # -- units -------------------------------------------------------------------------------------------

    def _start_unit(self, worker: str, unit: Unit) -> None:
        model = self.scheduler.scheduled[unit.model]
        trials = model.start_unit(unit)
        if not trials:  # the trials that were to be evaluated are stopped
            if self.scheduler.hopper.finish(worker, self._now()).evaluated:
                model.to_evaluate.pop(unit.epoch, None)
            return
        packed = {"pack": model.name} if len(trials) > 1 else {}
        for trial in trials:
            self.run_log.write("start", worker=worker, **_unit_place(unit, trial), **packed)
        self._hinted.discard(worker)
        self.scheduler.scheduled.running[worker] = trials
        first, *others = (self.state_files.task(unit, trial, self.trials) for trial in trials)
        self._pool.submit(worker, replace(first, packed_with=tuple(others)))
        self.watchdog.start_unit(worker, len(trials))

    def _end_unit(self, worker: str) -> list[Trial]:
        self.watchdog.end_unit(worker)
        return self.scheduler.scheduled.running.pop(worker, [])

    def _hint(self, worker: str) -> None:
        """Let a busy worker read the state of its likely next unit; packs read theirs when they start."""
        unit = self.scheduler.hopper.likely_next(worker)
        if unit is None:
            return
        trials = self.scheduler.scheduled[unit.model].trials
        state = self.state_files.state_for(unit, trials[0]) if len(trials) == 1 else None
        if state is not None:
            self._hinted.add(worker)
            self._pool.prefetch(worker, state)

    def _on_unit_done(self, event: TaskDone | PackDone) -> None:
        """A unit is finished: its models may hop, and its records wait until their states are durable."""
        hopper = self.scheduler.hopper
        unit = hopper.running()[event.worker]
        model = self.scheduler.scheduled[unit.model]
        self._end_unit(event.worker)
        parts = event.parts if isinstance(event, PackDone) else (event,)
        for part in parts:
            if isinstance(part, TaskFailed):
                self._fail(part, event.worker)
        done = [part for part in parts if isinstance(part, TaskDone)]
        if not done:
            hopper.give_back(event.worker)
            return
        self.replanner.on_unit_done(unit, event)
        finished = hopper.finish(event.worker, self._now(), event.end - event.start)
        trials = [self.trials[part.task.config] for part in done]
        for trial, part in zip(trials, done, strict=True):
            self._pending.add_unit(trial, part, model.name if isinstance(event, PackDone) else None)
            if part.task.state_out is not None:
                self.disk.on_state_written()
                trial.workers_lost = 0  # it can be trained: other workers were lost for other reasons
        if finished.trained:
            model.end_epoch(unit.epoch, trials)
        if finished.evaluated:
            for trial in model.to_evaluate.pop(unit.epoch, trials):
                if not trial.failed:
                    self._pending.add_report(trial, unit.epoch)
                    self._pending.write_ready(trial)
        for trial in trials:
            self._pending.write_ready(trial)

    def _on_state_lost(self, event: StateLost) -> None:
        """A finished unit will never count, and is done again."""
        lost = self._pending.on_state_lost(event.path)
        model = None if lost is None else self.scheduler.scheduled.model_of(lost.trial)
        if lost is not None and model is not None:  # otherwise the trial does not go on
            fields = lost.record.fields
            self.scheduler.hopper.undo(model.name, fields["epoch"], fields["partition"])

    def _report_epoch(self, trial: Trial, epoch: int) -> None:
        """All units of an epoch count: write the report, and let the search decide."""
        record = self.run_log.record
        metrics = summary(record.configs[trial.id], epoch)
        elapsed, spent = record.elapsed, record.device_seconds
        self.run_log.write(
            "report", config=trial.id, epoch=epoch, metrics=metrics, elapsed=elapsed, device_seconds=spent
        )
        self.run_log.warn_of_metrics(trial, epoch, metrics)
        self.scheduler.want(self.trials.report(trial.id, epoch, metrics, elapsed, spent))

    def _delete_state(self, path: Path) -> None:
        self.state_files.states.drop(path)
        self._pool.forget(path)

    # -- failures ------------------------------------------------------------------------------------------

    def _on_task_failed(self, event: TaskFailed) -> None:
        """The trial has failed and the others go on, unless the disk or a group of workers is the cause."""
        self._end_unit(event.worker)
        if event.disk:
            self.scheduler.hopper.give_back(event.worker)
            self.disk.begin(event.traceback)
            return
        profiling = event.task.kind == "pilot"
        if profiling or not self.replanner.blame_group(event.worker, event.error):
            self._fail(event, event.worker)
        if not profiling:
            self.scheduler.hopper.give_back(event.worker)

    def _fail(self, event: TaskFailed, worker: str) -> None:
        task = event.task
        place = {"kind": task.kind, "config": task.config, "epoch": task.epoch, "partition": task.partition}
        self._fail_trial(self.trials[task.config], {"worker": worker, **place}, event.error, event.traceback)

    def _fail_trial(self, trial: Trial, place: dict[str, Any], error: str, traceback: str) -> None:
        self.run_log.write("failed", **place, error=error, traceback=traceback)
        if trial.failed:  # in another of its units
            return
        changed = self.trials.fail(trial.id, place["epoch"])
        self.scheduler.drop(trial)
        self.scheduler.want(changed)

    # -- workers -------------------------------------------------------------------------------------------

    def _add_workers(self, ready: Mapping[str, WorkerReady]) -> None:
        for worker, event in ready.items():
            self._on_worker_up(worker, event.info)
        for worker in self.replanner.lost_workers():
            self._hand_over(worker)

    def _on_worker_up(self, worker: str, info: dict[str, Any]) -> None:
        self.replanner.on_worker_up(worker, info)
        train, evaluation = self._owners.partitions_of(worker)
        self.run_log.write("worker", worker=worker, state="up", **info, train=train, eval=evaluation)
        self.scheduler.hopper.add_worker(worker, train, evaluation)

    def _on_worker_lost(self, event: WorkerLost) -> None:
        """Another worker does its unit again, and its states are made durable from here."""
        hopper = self.scheduler.hopper
        self.run_log.write("worker", worker=event.worker, state="down", reason=event.reason)
        self.replanner.on_worker_down(event.worker, event.for_good)
        self._hinted.discard(event.worker)
        trials = self._end_unit(event.worker)
        unit = hopper.remove_worker(event.worker) if event.worker in hopper.workers() else None
        for path in self._pending.states_from(event.worker):
            if path.exists():  # otherwise the pool sees to it
                self._pending.on_state_durable(path, make_durable(path)[0])
        if event.for_good:
            self._hand_over(event.worker)
        if unit is None or event.for_good:  # no trial is to blame for a worker that leaves
            return
        if len(trials) > 1:  # one trial of the pack may be to blame: each goes on alone
            self.scheduler.split(self.scheduler.scheduled[unit.model], alone=True)
            return
        (trial,) = trials
        trial.workers_lost += 1
        if trial.workers_lost >= MAX_WORKERS_LOST:
            error = f"took {MAX_WORKERS_LOST} workers with it; the last, {event.worker}, {event.reason}"
            self._fail_trial(trial, {"worker": event.worker, **_unit_place(unit, trial)}, error, "")

    def _hand_over(self, worker: str) -> None:
        """Other workers take over the partitions of a worker that will not come back."""
        hopper = self.scheduler.hopper
        workers_up = hopper.workers()
        for missing in self._owners.hand_over(worker, workers_up):
            self.run_log.note("warning", f"{missing}: the run waits for a worker that has them.")
        for other in workers_up:
            hopper.set_partitions(other, *self._owners.partitions_of(other))

    def _regroup(self) -> bool:
        """Put workers into other groups if the plan says so; False while running units keep that waiting."""
        if not self.replanner.regroups:
            return True
        hopper = self.scheduler.hopper
        if hopper.running() or self._pending:
            return False
        for worker in hopper.workers():
            self.run_log.write("worker", worker=worker, state="down", regroups=True)
        ready = self.replanner.regroup()
        self.scheduler.restart()
        self._owners = PartitionOwners(self.settings.dataset, *self.replanner.teams())
        self._add_workers(ready)
        self.scheduler.add_waiting(self._pending)
        return True

    # -- users ---------------------------------------------------------------------------------------------

    def _serve(self, control: ControlServer) -> None:
        """Answer requests, admit workers that want to join, and end workers whose units take too long."""
        while (caller := control.next_caller()) is not None:
            if isinstance(caller, JoiningWorker):
                self._pool.admit(caller.connection, caller.wishes)
            else:
                self._answer_requests()
                caller.close()
        self.watchdog.end_overdue(self._pool, "its unit took")

    def _answer_requests(self) -> None:
        answered = self.run_log.record.requests
        for request in read_requests(self.settings.folder):
            if request["id"] not in answered:
                request, answer = check_request(request, self.run_log.record, self.interrupted())
                self.run_log.write("request", **request, answer=answer)
                if answer["done"]:
                    self.scheduler.want(self.trials.apply_request(request))
            write_answer(self.settings.folder, request["id"], answered[request["id"]]["answer"])

    def _now(self) -> float:
        return time.time() - self._started


def _unit_place(unit: Unit, trial: Trial) -> dict[str, Any]:
    return {"kind": unit.kind, "config": trial.id, "epoch": unit.epoch, "partition": unit.partition}
