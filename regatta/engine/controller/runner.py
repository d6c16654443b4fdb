"""The controller of a run: hears events, asks the hop scheduler, assigns units, writes the journal.

A unit is *finished* when its state can be read by the next worker, and *counts* when that state is durable and its
record is in the journal. Models hop on finished units; searches, reports and the deletion of older states wait
for units that count. The records of one configuration are written in the order of its trial, whatever the order in
which its states became durable.

A run whose folder holds a journal is resumed: what counts is not done again, what was under way is.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from regatta.cluster import Cluster
from regatta.data import Dataset
from regatta.engine.controller.control_server import ControlServer, JoiningWorker, RequestNotice
from regatta.engine.controller.partition_owners import PartitionOwners
from regatta.engine.controller.run_log import RunLog
from regatta.engine.controller.scheduled import ScheduledModel, ScheduledModels
from regatta.engine.controller.signals import interruptible
from regatta.engine.controller.state_files import StateFiles
from regatta.engine.controller.trials import (
    PendingRecord,
    Progress,
    Trial,
    Trials,
    summary,
)
from regatta.engine.controller.watchdog import Watchdog
from regatta.engine.messages import (
    DiskFull,
    Event,
    PackDone,
    StateDurable,
    StateLost,
    Task,
    TaskDone,
    TaskFailed,
    TaskReturned,
    WorkerLost,
    WorkerReady,
)
from regatta.engine.planning.packer import Orders, Packer
from regatta.engine.planning.planner import Planner
from regatta.engine.planning.replanner import Replanner
from regatta.engine.profiling.cache import ProfileCache
from regatta.engine.profiling.models import ProfilingRequest
from regatta.engine.profiling.session import RunProfiler
from regatta.engine.workers.base import WorkerPool
from regatta.errors import DiskError
from regatta.journal.journal import Journal, Record, read_lines
from regatta.journal.lock import RunLock
from regatta.journal.record import Listener, RunRecord
from regatta.paths import MEETINGS, run_journal, run_logs
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.teams import Teams
from regatta.plan.schedule.units import Unit
from regatta.search.base import Goal, Search
from regatta.search.predict import forecast
from regatta.store.states.state_files import make_durable

History: TypeAlias = list[tuple[Record, int]]  # records of the journal, and their bytes
PAUSES = 5  # so often, without a unit in between, there was room and then there was none
FORESEEN = 2_000  # reports of a search that are played to see what it will come to want
KILLS = 3  # a configuration that takes so many workers with it, one after another, has failed


class Runner:
    """Runs one sweep to its end."""

    def __init__(
        self,
        *,
        folder: Path,
        header: Callable[[], Mapping[str, Any]],
        dataset: Dataset,
        search: Search,
        goal: Goal,
        pool: WorkerPool,
        rule: str = "auto",
        orders: Orders = lambda config, epochs: None,
        unit_limit: float | None = None,
        planner: Planner,
        cluster: Cluster,
        profiles: ProfileCache | None = None,
        listeners: Iterable[Listener] = (),
    ) -> None:
        self._run_log = RunLog(listeners, goal.metric, self._wait_for_room)
        self._where = StateFiles(folder, dataset)
        self._folder = folder
        self._header = header
        self._dataset = dataset
        self._goal = goal
        self._rule = rule
        self._orders = orders
        self._search = search
        self._packer = Packer(orders)
        self._scheduled = ScheduledModels()
        self._replanner = Replanner(
            pool, planner, cluster, self._run_log, self._packer, self._scheduled, run_logs(folder) / MEETINGS
        )
        self._trials = Trials(search, goal)
        self._awaited: dict[Path, tuple[Trial, PendingRecord, str]] = {}  # states on their way to the disk
        self._largest = 0  # bytes of a state
        self._pauses = 0  # since a state was written
        self._hinted: set[str] = set()  # workers that know what probably comes next
        self._callers: queue.SimpleQueue[RequestNotice | JoiningWorker] = queue.SimpleQueue()
        self._watchdog = Watchdog(lambda: self._pool.wake(), unit_limit)
        self._profiler = RunProfiler(
            ProfilingRequest(dataset, goal, cache=profiles),
            self._replanner,
            self._run_log,
            self._watchdog,
            lambda: self._interrupted,
        )
        self._interrupted = False
        self._looping = False
        self._started = time.time()

    def run(self) -> RunRecord:
        """Train what the search asks for until it asks for no more."""
        try:
            with RunLock(self._folder), interruptible(self._hear_signal):
                self._where.states.folder.mkdir(
                    exist_ok=True
                )  # the journal makes all names in the run's folder durable
                history = _history(run_journal(self._folder))
                with Journal(run_journal(self._folder)) as journal:
                    self._run_log.open(journal)
                    self._go(history)
        finally:
            self._watchdog.close()
            self._pool.close()
        if self._interrupted:
            raise KeyboardInterrupt
        return self.record

    @property
    def _pool(self) -> WorkerPool:
        return self._replanner.pool

    @property
    def record(self) -> RunRecord:
        """The run so far."""
        return self._run_log.record

    def interrupt(self) -> None:
        """Come to a halt once the states that are on their way are durable; may be called from another thread."""
        self._interrupted = True
        if self._looping or self._profiler.under_way:
            self._pool.wake()

    def _hear_signal(self) -> None:
        self.interrupt()
        if not self._looping:
            raise KeyboardInterrupt  # nothing is on its way

    def _go(self, history: History) -> None:
        try:
            self._prepare(history)
            try:
                with ControlServer(self._folder, self._call) as self._control:
                    self._loop()
            finally:
                self._turn_away()
            self._run_log.settle()  # a run that has ended leaves nothing lying about
            self._run_log.write("end", **({"status": "interrupted"} if self._interrupted else self._verdict()))
        except KeyboardInterrupt:
            self._run_log.write("end", status="interrupted")
            raise
        except BaseException as error:
            self._run_log.write("end", status="failed", error=f"{type(error).__name__}: {error}")
            raise

    # -- beginning, and beginning again --------------------------------------------------------------

    def _prepare(self, history: History) -> None:
        """The search, the trials, the workers and the scheduler: new, or as the journal says they were."""
        if not history:
            self._run_log.write("run", None, **self._header())
        asked = forecast(self._search, self._goal, FORESEEN)  # before it begins: to start again would make it forget
        self._trials.start()
        for line, size in history:
            self.record.apply(line, size)
            self._trials.replay_record(line)
        if history:
            self._run_log.write("resume", pid=os.getpid())
            done, wanted = self.record.progress()
            text = f"Going on with {self.record.name}: {done} of {wanted} training units count already."
            self._run_log.note("info", text)
        for trial in self._trials:
            self._declare(trial)
        lines = [line for line, _ in history]
        self._scheduled.count_packs_from(line["pack"] for line in lines if line.get("pack") is not None)
        found = self._profiler.run(self._trials, lines, asked)
        self._estimates = found.models.estimates
        self._largest = max((profile.state_bytes for profile in found.models.profiles.values()), default=0)
        self._seat(self._replanner.begin(found, asked, lines))
        if history:
            self._where.clear_away(self.record)
        self._want([trial for trial in self._trials if not trial.scheduled])
        for failure in found.models.failed.values():
            self._fail(failure)
        self._enlist()

    def _seat(self, ready: Mapping[str, WorkerReady]) -> None:
        """A scheduler for these workers, who are there, and for others, who may come."""
        teams = self._replanner.teams()
        self._hopper = self._scheduler(teams)
        self._owners = PartitionOwners(self._dataset, *teams)
        for worker, event in ready.items():
            self._add_worker(worker, event.info)
        for worker in self._replanner.lost_workers():
            self._hand_over(worker)

    def _enlist(self) -> None:
        """Give the scheduler what waits for it: packs where they pay, single trials otherwise."""
        while ready := self._scheduled.take_ready():
            places = {trial: self._where.take_up(trial, self.record) for trial in ready if not trial.failed}
            for trials in self._packer.form(places, self._idle_workers()):
                self._admit(trials, places[trials[0]])

    def _idle_workers(self) -> int:
        """Workers for whom there is no model with something left to do."""
        expected = max(self._hopper.worker_count(), len(self._pool.workers))  # those of a resumed run come later
        return max(1, expected - self._hopper.models_left())

    def _admit(self, trials: Sequence[Trial], far: Progress) -> None:
        first = trials[0]
        model = self._scheduled.add(trials, {epoch for epoch, _ in far.evals})
        if model.name != first.id:
            names = [trial.id for trial in trials]
            self._estimates.set_pack(model.name, names, self._packer.gain(model), self._packer.fixed(model))
        if len(trials) > 1:
            self._run_log.note("info", self._packer.describe(model))
        self._hopper.add_model(
            model.name, max(first.epochs, far.epochs), done=far.epochs, visited=far.visited, evals=far.evals,
            order=self._orders(first.id, first.epochs), most=first.most,
        )  # fmt: skip
        for trial in trials:
            if trial.stopped:
                self._hopper.stop_model(model.name)
            for epoch in far.reports:
                trial.pending.append(PendingRecord("report", {"config": trial.id, "epoch": epoch}))
            self._settle(trial)

    def _scheduler(self, teams: Sequence[Sequence[str]]) -> Hopper | Teams:
        parts, evals = len(self._dataset.train), len(self._dataset.eval)
        hoppers = [
            Hopper(parts, evals, estimates=self._estimates, rule=self._rule, seed=self._goal.seed) for _ in teams
        ]
        if len(hoppers) == 1:
            return hoppers[0]
        seats = {worker: place for place, team in enumerate(teams) for worker in team}
        return Teams(hoppers, seats.__getitem__, self._replanner.team_of)

    # -- the loop --------------------------------------------------------------------------------------

    def _loop(self) -> None:
        self._looping = True
        self._attend()
        self._dispatch()
        while self._awaited or not (self._interrupted or self._hopper.done()):
            for event in self._pool.events():
                self._hear(event)
            self._attend()
            self._dispatch()

    def _hear(self, event: Event) -> None:
        if isinstance(event, TaskDone | TaskFailed) and event.task.kind == "pilot":
            return  # of a group that was given up
        if isinstance(event, TaskDone | PackDone):
            self._finish(event)
        elif isinstance(event, StateDurable):
            self._count(event.path, event.hash)
        elif isinstance(event, StateLost):
            self._undo(event.path)
        elif isinstance(event, TaskFailed):
            self._fail(event)
        elif isinstance(event, TaskReturned):
            self._end_unit(event.worker)
            self._hopper.give_back(event.worker)
        elif isinstance(event, DiskFull):
            self._pause(event.error)
        elif isinstance(event, WorkerReady):
            self._add_worker(event.worker, event.info)
        else:
            self._lose(event)

    def _attend(self) -> None:
        """To people who ask for something, workers that want to join, and units that take too long."""
        while not self._callers.empty():
            caller = self._callers.get()
            if isinstance(caller, JoiningWorker):
                self._pool.admit(caller.connection, caller.wishes)
            else:
                self._serve(caller)
        self._watchdog.end_overdue(self._pool, "its unit took")

    def _dispatch(self) -> None:
        """Give idle workers their units, and busy ones a hint of what comes next."""
        self._reconsider()
        self._enlist()
        if self._interrupted or self._watchdog.holds() or self._waits_for_groups():
            return
        while assignments := self._hopper.assign(self._now()):
            for assignment in assignments:
                self._begin(assignment.worker, assignment.unit)
        for worker in self._hopper.running():
            if worker not in self._hinted:
                self._hint(worker)

    def _begin(self, worker: str, unit: Unit) -> None:
        model = self._scheduled[unit.model]
        trials = model.start_unit(unit)
        if not trials:  # who was to be judged is stopped
            if self._hopper.finish(worker, self._now()).evaluated:
                model.to_evaluate.pop(unit.epoch, None)
            return
        packed = {"pack": model.name} if len(trials) > 1 else {}
        for trial in trials:
            self._run_log.write("start", None, worker=worker, **_place(unit, trial), **packed)
        self._hinted.discard(worker)
        self._scheduled.running[worker] = trials
        first, *others = (self._where.task(unit, trial, self._trials) for trial in trials)
        self._pool.submit(worker, replace(first, packed_with=tuple(others)))
        self._watchdog.begin(worker, len(trials))

    def _end_unit(self, worker: str) -> list[Trial]:
        """A worker's unit is over, however it ended; whose it was."""
        self._watchdog.end(worker)
        return self._scheduled.running.pop(worker, [])

    def _hint(self, worker: str) -> None:
        """Let a busy worker read the state that it will probably need next."""
        upcoming = self._hopper.likely_next(worker)
        trials = self._scheduled[upcoming.model].trials if upcoming is not None else []
        state = self._where.state_for(upcoming, trials[0]) if upcoming is not None and len(trials) == 1 else None
        if state is not None:
            self._hinted.add(worker)
            self._pool.prefetch(worker, state)

    # -- units -------------------------------------------------------------------------------------------

    def _finish(self, event: TaskDone | PackDone) -> None:
        """A unit is done: its models may hop on, and its records wait for their states to be durable."""
        model = self._scheduled[self._hopper.running()[event.worker].model]
        self._end_unit(event.worker)
        parts = event.parts if isinstance(event, PackDone) else (event,)
        for part in parts:
            if isinstance(part, TaskFailed):
                place = {"worker": event.worker, **_task_place(part.task)}
                self._give_up(self._trials[part.task.config], place, part.error, part.traceback)
        done = [part for part in parts if isinstance(part, TaskDone)]
        if not done:
            self._hopper.give_back(event.worker)
            return
        self._replanner.on_unit_done(self._hopper.running()[event.worker], event)
        finished = self._hopper.finish(event.worker, self._now(), event.end - event.start)
        packed = {"pack": model.name} if isinstance(event, PackDone) else {}
        trials = [self._enter(part, packed) for part in done]
        if finished.trained:
            model.end_epoch(finished.unit.epoch, trials)
        if finished.evaluated:
            judged = model.to_evaluate.pop(finished.unit.epoch, trials)
            for trial in (trial for trial in judged if not trial.failed):
                trial.pending.append(PendingRecord("report", {"config": trial.id, "epoch": finished.unit.epoch}))
                self._settle(trial)
        for trial in trials:
            self._settle(trial)

    def _enter(self, event: TaskDone, packed: Mapping[str, str]) -> Trial:
        """The record of a unit, to be written when its state is durable."""
        task, trial = event.task, self._trials[event.task.config]
        fields = {**_unit_fields(event, self._folder), **packed}
        entry = PendingRecord("unit", fields, before=(trial.state, trial.visits))
        trial.pending.append(entry)
        if task.state_out is not None:
            entry.ready = False
            self._awaited[task.state_out] = (trial, entry, event.worker)
            self._pauses = 0
            trial.kills = 0  # it can be trained; what died under it died of something else
            entry.spent = self._where.spent(trial, task)
            trial.state, trial.visits = task.state_out, trial.visits + 1
        return trial

    def _count(self, path: Path, digest: str) -> None:
        awaited = self._awaited.pop(path, None)
        if awaited is not None:
            trial, entry, _ = awaited
            entry.fields["hash"] = digest
            entry.ready = True
            self._settle(trial)

    def _undo(self, path: Path) -> None:
        """A finished unit will never count: its model is where it was before."""
        awaited = self._awaited.pop(path, None)
        if awaited is None:
            return
        trial, entry, _ = awaited
        while trial.pending.pop() is not entry:
            pass  # a report of the epoch that it ended
        trial.state, trial.visits = entry.before
        model = self._scheduled.model_of(trial)
        if model is not None:  # otherwise nobody goes on with it
            self._hopper.undo(model.name, entry.fields["epoch"], entry.fields["partition"])

    def _settle(self, trial: Trial) -> None:
        """Write what of a configuration is due, in order; then the search may hear of it."""
        while trial.pending and trial.pending[0].ready:
            entry = trial.pending.popleft()
            if entry.event == "report":
                self._report(trial, entry.fields["epoch"])
            else:
                then = None if entry.spent is None else partial(self._forget, entry.spent)
                self._run_log.write(entry.event, then, **entry.fields)

    def _forget(self, path: Path) -> None:
        self._where.states.drop(path)
        self._pool.forget(path)

    def _report(self, trial: Trial, epoch: int) -> None:
        metrics = summary(self.record.configs[trial.id], epoch)
        elapsed, spent = self.record.elapsed, self.record.device_seconds
        self._run_log.write(
            "report", config=trial.id, epoch=epoch, metrics=metrics, elapsed=elapsed, device_seconds=spent
        )
        self._run_log.warn_of_metrics(trial, epoch, metrics)
        self._want(self._trials.report(trial.id, epoch, metrics, elapsed, spent))

    def _want(self, trials: Iterable[Trial]) -> None:
        """Put into effect what is wanted of these trials now."""
        for trial in trials:
            self._declare(trial)
            if trial.failed:
                continue
            model = self._scheduled.model_of(trial)
            if model is not None:
                self._extend(model)
            elif not trial.scheduled or not trial.stopped:
                trial.scheduled = True
                self._scheduled.wait(trial)

    def _extend(self, model: ScheduledModel) -> None:
        """Train a model as far as its members are wanted to be now."""
        active = model.active()
        if active:
            epochs = model.epochs()
            self._hopper.extend_model(model.name, epochs, order=self._orders(active[0].id, epochs))
        else:
            self._hopper.stop_model(model.name)
            if model.is_pack:  # who has trained enough may still have to be judged
                self._scheduled.disband(model)

    def _declare(self, trial: Trial) -> None:
        """Write what is wanted of a trial, unless the journal says so already."""
        known = self.record.configs.get(trial.id)
        again = known is not None and known.stopped and not trial.stopped
        if known is None or known.epochs != trial.epochs or again:
            wanted = {"values": dict(trial.values), "epochs": trial.epochs}
            parent = {"parent": trial.parent, "parent_epoch": trial.parent_epoch}
            self._run_log.write("config", None, config=trial.id, **wanted, **parent)
        if trial.stopped and not self.record.configs[trial.id].stopped:
            self._run_log.write("stop", config=trial.id)

    # -- failures ------------------------------------------------------------------------------------------

    def _fail(self, event: TaskFailed) -> None:
        """The configuration's own fault: it ends, the others go on. A disk that is full is nobody's fault."""
        self._end_unit(event.worker)
        if event.disk:
            self._hopper.give_back(event.worker)
            self._pause(event.traceback)
            return
        if event.task.kind != "pilot" and self._replanner.blame_group(event.worker, event.error):
            self._hopper.give_back(event.worker)
            return
        place = {"worker": event.worker, **_task_place(event.task)}
        self._give_up(self._trials[event.task.config], place, event.error, event.traceback)
        if event.task.kind != "pilot":
            self._hopper.give_back(event.worker)

    def _give_up(self, trial: Trial, place: dict[str, Any], error: str, traceback: str) -> None:
        self._run_log.write("failed", **{**place, "config": trial.id}, error=error, traceback=traceback)
        if trial.failed:  # by another of its units
            return
        changed = self._trials.fail(trial.id, place["epoch"])
        model = self._scheduled.model_of(trial)
        if model is not None:
            self._extend(model)
        self._want(changed)

    def _pause(self, error: str) -> None:
        """No new units until the disk takes their states; one that only says that it would is not waited for."""
        if self._watchdog.wait_for_room(self._where.states.folder, self._largest):
            self._pauses += 1
            if self._pauses > PAUSES:
                raise DiskError(error)
            text = f"Paused, and going on by itself once the disk takes {self._largest} bytes: {error}"
            self._run_log.say("warning", text)

    def _wait_for_room(self, error: OSError) -> bool:
        """The journal cannot be written; whether there is room again."""
        if self._interrupted:
            return False
        self._pause(f"the journal cannot be written: {error.strerror}")
        self._watchdog.wait()
        return True

    # -- workers -------------------------------------------------------------------------------------------

    def _add_worker(self, worker: str, info: dict[str, Any]) -> None:
        self._replanner.on_worker_up(worker, info)
        train, held = self._owners.of(worker)
        self._run_log.write("worker", None, worker=worker, state="up", **info, train=train, eval=held)
        self._hopper.add_worker(worker, train, held)

    def _lose(self, event: WorkerLost) -> None:
        """A worker is gone: its unit is done again elsewhere, its states are made durable from here."""
        self._run_log.write("worker", worker=event.worker, state="down", reason=event.reason)
        self._replanner.on_worker_down(event.worker, event.for_good)
        self._hinted.discard(event.worker)
        trials = self._end_unit(event.worker)
        unit = self._hopper.remove_worker(event.worker) if event.worker in self._hopper.workers() else None
        for path in [path for path, (_, _, worker) in self._awaited.items() if worker == event.worker]:
            if path.exists():  # otherwise the pool sees to it
                self._count(path, make_durable(path)[0])
        if event.for_good:
            self._hand_over(event.worker)
        if unit is None or event.for_good:  # a guest that leaves is nobody's fault
            return
        model = self._scheduled[unit.model]
        if len(trials) > 1:  # whoever it was, the others go on
            self._scheduled.disband(model, alone=True)
            self._hopper.stop_model(model.name)
            return
        (trial,) = trials
        trial.kills += 1
        if trial.kills >= KILLS:
            error = f"took {KILLS} workers with it; the last, {event.worker}, {event.reason}"
            self._give_up(trial, {"worker": event.worker, **_place(unit, trial)}, error, "")

    def _hand_over(self, worker: str) -> None:
        """Others go on with what a worker held that will not come back."""
        left = self._hopper.workers()
        for missing in self._owners.hand_over(worker, left):
            self._run_log.note("warning", f"{missing}: the run waits for a worker that has them.")
        for other in left:
            self._hopper.set_partitions(other, *self._owners.of(other))

    # -- the plan ------------------------------------------------------------------------------------------

    def _reconsider(self) -> None:
        """Where the plan is made anew, scheduled become as it says, as soon as what they have trained counts."""
        if self._interrupted or not self._replanner.replan(self._hopper, self._trials):
            return
        for model in list(self._scheduled):
            if model.trials and self._hopper.model_units_left(model.name) and not self._packer.fits(model):
                self._scheduled.disband(model)
                self._hopper.stop_model(model.name)

    def _waits_for_groups(self) -> bool:
        """Whether workers are to be in other groups, which waits until nothing is under way."""
        if not self._replanner.regroups:
            return False
        if self._hopper.running() or self._awaited:
            return True
        for worker in self._hopper.workers():
            self._run_log.write("worker", None, worker=worker, state="down", regroups=True)
        self._scheduled.restart(self._hopper.model_units_left)
        self._seat(self._replanner.regroup())
        self._enlist()
        return False

    # -- people --------------------------------------------------------------------------------------------

    def _call(self, caller: RequestNotice | JoiningWorker) -> None:
        """Somebody is at the door; called from another thread."""
        self._callers.put(caller)
        self._pool.wake()

    def _turn_away(self) -> None:
        """Whoever came too late must not wait for an answer; what was asked for waits for the next controller."""
        self._looping = False
        while not self._callers.empty():
            self._callers.get().close()

    def _serve(self, knock: RequestNotice) -> None:
        """Do what people asked for, and say what was done."""
        for request in self._control.requests():
            if request["id"] not in self.record.requests:
                request, answer = self._control.judge(request, self.record, self._interrupted)
                self._run_log.write("request", **request, answer=answer)
                if answer["done"]:
                    self._want(self._trials.apply_request(request))
            self._control.answer(request["id"], self.record.requests[request["id"]]["answer"])
        knock.close()

    def _verdict(self) -> dict[str, Any]:
        configs = self.record.configs.values()
        if configs and all(config.error is not None for config in configs):
            return {"status": "failed", "error": "every configuration failed"}
        return {"status": "done"}

    def _now(self) -> float:
        return time.time() - self._started


def _history(path: Path) -> History:
    return list(read_lines(path)) if path.exists() else []


def _place(unit: Unit, trial: Trial) -> dict[str, Any]:
    return {"kind": unit.kind, "config": trial.id, "epoch": unit.epoch, "partition": unit.partition}


def _unit_fields(event: TaskDone, folder: Path) -> dict[str, Any]:
    task = event.task
    fields = {k: v for k, v in vars(event).items() if k not in ("task", "profile", "pack_profile", "group_profile")}
    state = None if task.state_out is None else str(task.state_out.relative_to(folder))
    return {**_task_place(task), **fields, "state": state}


def _task_place(task: Task) -> dict[str, Any]:
    return {"kind": task.kind, "config": task.config, "epoch": task.epoch, "partition": task.partition}
