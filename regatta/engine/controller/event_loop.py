"""The loop of the controller: takes events of workers, gives units to workers, and writes the journal.

A unit is *finished* when the next worker can read its state. It *counts* when that state is durable and its record is
in the journal. Models hop after finished units. Searches, reports and the deletion of older states wait for units that
count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from regatta.engine.controller.control_server import ControlServer, JoiningWorker
from regatta.engine.controller.faults import Faults, HeldFailure
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
    TaskBegun,
    TaskDone,
    TaskFailed,
    TaskReturned,
    WorkerLost,
    WorkerReady,
)
from regatta.engine.module_code import code_changes, read_code
from regatta.engine.planning.replanner import Replanner
from regatta.engine.workers.base import WorkerPool
from regatta.errors import PausedError
from regatta.plan.schedule.units import Unit
from regatta.store.states.state_files import make_durable


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
        self._begun: set[str] = set()  # workers whose units have their data, and run the user's functions
        self._faults = Faults(self.settings.folder.name, self.watchdog.wake_at)
        self._started = time.time()
        self._owners = PartitionOwners(self.settings.dataset, *self.replanner.teams())
        self._code = read_code(self.settings.folder)
        self._add_workers(ready)

    @property
    def _pool(self) -> WorkerPool:
        return self.replanner.pool  # another one whenever workers are put into groups

    def run(self, control: ControlServer) -> None:
        self._serve(control)
        self._dispatch()
        while self._pending or not (self.interrupted() or self._is_done()):
            for event in self._pool.events():
                self._on_event(event)
            self._serve(control)
            self._dispatch()

    def _is_done(self) -> bool:
        return self.scheduler.hopper.done() and not self._faults.waits

    def schedule(self, failures: Iterable[TaskFailed], profiled: Iterable[str]) -> None:
        """Schedule the trials of the run. Some were profiled now, or failed at that."""
        for config in profiled:
            self._faults.on_profile(config)
        self.scheduler.want([trial for trial in self.trials if not trial.scheduled])
        for failure in sorted(failures, key=lambda failure: failure.start):
            if failure.cause == "model" and self._faults.on_error(failure.worker):
                self._fail(failure, failure.worker)  # otherwise its units will show whether it can be trained
        self.scheduler.add_waiting(self._pending)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, TaskDone | TaskFailed) and event.task.kind == "pilot":
            return  # profiling by a group that was given up
        if isinstance(event, TaskBegun):
            self._begun.add(event.worker)
        elif isinstance(event, TaskDone | PackDone):
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
            if self._has_the_same_code(event):
                self._on_worker_up(event.worker, event.info)
        else:
            self._on_worker_lost(event)

    def _dispatch(self) -> None:
        """Give idle workers their units, and tell busy ones which state they will probably need next."""
        if not self.interrupted() and self.replanner.replan(self.scheduler.hopper, self.trials):
            self.scheduler.split_unplanned()
        self.scheduler.add_waiting(self._pending)
        while self._faults.held and self.scheduler.hopper.done() and not self._pending and not self.interrupted():
            if not self._fail_proven(nothing_else=True):
                break
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
        self._begun.discard(worker)
        self._pool.submit(worker, replace(first, packed_with=tuple(others)))
        self._faults.start_unit(worker)
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
        for note in event.notes if isinstance(event, PackDone) else ():
            self.run_log.note("warning", note)
        failed = [part for part in parts if isinstance(part, TaskFailed)]
        done = [part for part in parts if isinstance(part, TaskDone)]
        unread = [part for part in failed if part.cause == "data"]
        raised = [part for part in failed if part.cause == "model"]
        if len(raised) > 1 and not done and self._replace(event.worker, raised):
            self.scheduler.split(model, alone=True)  # one of them may have made the process unusable for the others
            return
        for fault in failed:
            if fault not in unread:
                self._fail(fault, event.worker)
        if unread:
            self._on_unread_partition(unread[0], event.worker)
        if not done:
            hopper.give_back(event.worker)
            return
        self.replanner.on_unit_done(unit, event)
        finished = hopper.finish(event.worker, self._now(), event.end - event.start)
        trials = [self.trials[part.task.config] for part in done]
        for missed in unread:
            self.scheduler.reschedule(self.trials[missed.task.config])  # it is not in step with the others any more
        self._faults.works((unit.kind, unit.partition))
        self._faults.on_unit_done(event.worker, trials if unit.kind == "train" else [])
        for survivor in self._faults.take_survivors():
            self.scheduler.reschedule(survivor)
        for trial, part in zip(trials, done, strict=True):
            self._pending.add_unit(trial, part, model.name if isinstance(event, PackDone) else None)
            self.run_log.warn_once(trial.id, part.warnings)
            if part.task.state_out is not None:
                self.disk.on_state_written()
        if finished.trained:
            model.end_epoch(unit.epoch, trials)
        if finished.evaluated:
            for trial in model.to_evaluate.pop(unit.epoch, trials):
                if not trial.failed:
                    self._pending.add_report(trial, unit.epoch)
                    self._pending.write_ready(trial)
        for trial in trials:
            self._pending.write_ready(trial)
        self._fail_proven()

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
        costs: dict[str, Any] = {"elapsed": record.elapsed, "device_seconds": record.device_seconds}
        if self.trials.counts_iterations:
            costs["iterations"] = record.configs[trial.id].iterations(epoch)
        self.run_log.write("report", config=trial.id, epoch=epoch, metrics=metrics, **costs)
        self.run_log.warn_of_metrics(trial, epoch, metrics)
        self.scheduler.want(self.trials.report(trial.id, epoch, metrics, **costs))

    def _delete_state(self, path: Path) -> None:
        self.state_files.states.drop(path)
        self._pool.forget(path)

    # -- failures ------------------------------------------------------------------------------------------

    def _on_task_failed(self, event: TaskFailed) -> None:
        """The trial has failed and the others go on, unless the data, the disk or a group of workers is the cause."""
        self._end_unit(event.worker)
        if event.disk:
            self.scheduler.hopper.give_back(event.worker)
            self.disk.begin(event.traceback)
            return
        if event.cause == "data":
            self._on_unread_partition(event, event.worker)
        elif not self.replanner.blame_group(event.worker, event.error):
            may_be_unfit = event.cause == "model" or self._owners.joined(event.worker)
            counts = not may_be_unfit or self._faults.on_error(event.worker)
            if not counts and self._replace(event.worker, [event]):
                return
            self._fail(event, event.worker)
        self.scheduler.hopper.give_back(event.worker)

    def _replace(self, worker: str, errors: Sequence[TaskFailed]) -> bool:
        """Start a worker again, because an error may have made its process unusable, and do its unit again.

        False if that cannot be done: the errors are those of the trials.
        """
        if not self._pool.end(worker, "was ended: units failed in its process, one after another"):
            return False
        names = ", ".join(event.task.config for event in errors)
        if self._owners.joined(worker):
            text = f"{worker}, which joined, is dismissed, because its units failed and none was finished in between."
            again = "by other workers"
        else:
            text = f"{worker} is started again, because units failed in its process one after another."
            again = "in the new process"
        self.run_log.note("warning", f"{text} {names}: {errors[0].error}. The unit is tried again {again}.")
        self.scheduler.hopper.remove_worker(worker)  # it gets no unit until it is up again
        return True

    def _on_unread_partition(self, event: TaskFailed, worker: str) -> None:
        """Other workers take over a partition that a worker cannot read; if there are none, it is tried again later."""
        kind, partition = event.task.kind, event.task.partition
        holders = self._owners.withdraw(worker, kind, partition, self.scheduler.hopper.workers())
        what = f"{worker} cannot read {kind} partition {partition}: {event.error}."
        if holders:
            self.run_log.note("warning", f"{what} {', '.join(holders)} {'reads' if len(holders) == 1 else 'read'} it.")
        else:
            delay = self._faults.next_delay((kind, partition))
            if delay is None:
                file = self._partition_file(kind, partition)
                text = f"{file}: no worker can read this partition.\n{event.traceback or event.error}"
                raise self._faults.pause(text.rstrip())
            self.run_log.note("warning", f"{what} It is tried again after {delay:g} s; Ctrl-C stops the run.")
            self._faults.after(delay, partial(self._restore_partition, kind, partition))
        self._update_partitions()

    def _partition_file(self, kind: str, partition: int) -> Path:
        dataset = self.settings.dataset
        return (dataset.train if kind == "train" else dataset.eval)[partition].path

    def _restore_partition(self, kind: str, partition: int) -> None:
        self._owners.restore(kind, partition)
        self._update_partitions()

    def _update_partitions(self) -> None:
        hopper = self.scheduler.hopper
        for worker in hopper.workers():
            hopper.set_partitions(worker, *self._owners.partitions_of(worker))

    def _fail(self, event: TaskFailed, worker: str) -> None:
        """A unit raised an error, which the trial is to blame for unless all trials have it."""
        task, trial, since = event.task, self.trials[event.task.config], 0.0
        if event.cause == "environment":
            since = self._faults.failing_since(trial)
            delay = None if trial.held or trial.failed else self._faults.next_delay(trial.id)
            if delay is not None:
                text = f"{trial.id}: {event.error}. It is tried again after {delay:g} s; Ctrl-C stops the run."
                self.run_log.note("warning", text, config=trial.id)
                trial.held = True
                self.scheduler.drop(trial)
                self._faults.after(delay, partial(self._release, trial))
                return
        place = {"kind": task.kind, "config": task.config, "epoch": task.epoch, "partition": task.partition}
        how = event.error, event.traceback, event.error.partition(":")[0], since, event.cause
        self._hold(HeldFailure(trial, {"worker": worker, **place}, *how))

    def _release(self, trial: Trial) -> None:
        trial.held = False
        self.scheduler.reschedule(trial)

    def _hold(self, failure: HeldFailure) -> None:
        """Hold back a failure until it is known that the trial is to blame, which may be at once."""
        if failure.trial.failed or failure.trial.held:  # in another of its units
            if failure.trial.failed:
                self.run_log.write("failed", **failure.place, error=failure.error, traceback=failure.traceback)
            return
        self._faults.hold(failure)
        self.scheduler.drop(failure.trial)
        self._fail_proven()

    def _fail_proven(self, nothing_else: bool = False) -> bool:
        """Let the trials fail that are to blame; if `nothing_else` is left to train, that is decided now."""
        proven = self._faults.take_proven(nothing_else)
        for failure in proven:
            self.run_log.write("failed", **failure.place, error=failure.error, traceback=failure.traceback)
            changed = self.trials.fail(failure.trial.id, failure.place["epoch"])
            self.scheduler.drop(failure.trial)
            self.scheduler.want(changed)
        return bool(proven)

    # -- workers -------------------------------------------------------------------------------------------

    def _add_workers(self, ready: Mapping[str, WorkerReady]) -> None:
        for worker, event in ready.items():
            self._on_worker_up(worker, event.info)
        for worker in self.replanner.lost_workers():
            self._hand_over(worker)

    def _has_the_same_code(self, event: WorkerReady) -> bool:
        """Whether a worker that starts now has the code that the run is trained with; the run pauses if it has not."""
        changes = "; ".join(map(str, code_changes(self._code)))
        if changes and "readable" in event.info:  # it joined by itself, and the run goes on without it
            self.run_log.note("warning", f"{event.worker} cannot join, because code has changed: {changes}")
            self._pool.end(event.worker, "was ended: code has changed since the run began")
        elif changes:
            run = self.settings.folder.name
            raise PausedError(
                f"{event.worker} was started, and code has changed since the run began: {changes}.",
                hint=f"Undo the change and resume the run: regatta resume {run}\n"
                f"Or go on with the new code: regatta resume {run} --changed-code",
            )
        return not changes

    def _on_worker_up(self, worker: str, info: dict[str, Any]) -> None:
        self._faults.on_new_process(worker, joined="readable" in info)
        self.replanner.on_worker_up(worker, info)
        self._owners.add(worker, info.get("readable"), info.get("named", False))
        info = {name: value for name, value in info.items() if name not in ("readable", "named")}
        train, evaluation = self._owners.partitions_of(worker)
        if not train and not evaluation:
            self.run_log.note("warning", f"{worker} holds no partition, so it gets no units.")
        self.run_log.write("worker", worker=worker, state="up", **info, train=train, eval=evaluation)
        self.scheduler.hopper.add_worker(worker, train, evaluation)

    def _on_worker_lost(self, event: WorkerLost) -> None:
        """Another worker does its unit again, and its states are made durable from here."""
        hopper, begun = self.scheduler.hopper, event.worker in self._begun
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
        if not begun:
            data = str(self._partition_file(unit.kind, unit.partition))
            self._faults.on_early_death(event.worker, event.reason, event.killed, data)
            return
        suspects = [trial for trial in trials if self._faults.on_death(event.worker, trial, event.reason, event.killed)]
        if len(trials) > 1:
            if suspects or not event.killed:  # one trial of the pack may be to blame: each goes on alone
                self.scheduler.split(self.scheduler.scheduled[unit.model], alone=True)
            return
        for trial in suspects:
            deaths = self._faults.deaths_of(trial)
            error = f"took {len(deaths)} workers with it; the last, {event.worker}, {event.reason}"
            place = {"worker": event.worker, **_unit_place(unit, trial)}
            self._hold(HeldFailure(trial, place, error, "", event.reason, deaths.since, "death"))

    def _hand_over(self, worker: str) -> None:
        """Other workers take over the partitions of a worker that will not come back."""
        for missing in self._owners.hand_over(worker, self.scheduler.hopper.workers()):
            self.run_log.note("warning", f"{missing}: the run waits for a worker that has them.")
        self._update_partitions()

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
                self._admit(caller)
            else:
                self._answer_requests()
                caller.close()
        self.watchdog.end_overdue(self._pool, "its unit took")
        for action in self._faults.take_due():
            action()

    def _admit(self, caller: JoiningWorker) -> None:
        if caller.wishes.get("holds") is None and self._owners.are_placed:
            how = f"Name those that this one can read: regatta worker {self.settings.folder.name} --holds PARTITION ..."
            caller.refuse(f"An availability map says which workers can read which partitions.\n{how}")
        else:
            self._pool.admit(caller.connection, caller.wishes)

    def _answer_requests(self) -> None:
        answered = self.run_log.record.requests
        for request in read_requests(self.settings.folder):
            if request["id"] not in answered:
                request, answer = check_request(request, self.run_log.record, self.interrupted())
                self.run_log.write("request", **request, answer=answer)
                if answer["done"]:
                    self.scheduler.want(self.trials.apply_request(request))
                if answer["done"] and request["verb"] == "retry":
                    self._faults.forget(self.trials[request["config"]])
                    self.scheduler.reschedule(self.trials[request["config"]])
            write_answer(self.settings.folder, request["id"], answered[request["id"]]["answer"])

    def _now(self) -> float:
        return time.time() - self._started


def _unit_place(unit: Unit, trial: Trial) -> dict[str, Any]:
    return {"kind": unit.kind, "config": trial.id, "epoch": unit.epoch, "partition": unit.partition}
