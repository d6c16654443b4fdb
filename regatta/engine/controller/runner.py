"""Runs one sweep from its first record to its last: starts or resumes it, profiles, plans, and trains.

A run whose folder holds a journal is resumed. Units that count are not done again; units that were running are.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from regatta.engine.controller.control_server import ControlServer
from regatta.engine.controller.event_loop import EventLoop
from regatta.engine.controller.run_log import RunLog
from regatta.engine.controller.scheduled_models import ScheduledModels
from regatta.engine.controller.settings import RunSettings
from regatta.engine.controller.state_files import StateFiles
from regatta.engine.controller.trial_scheduler import TrialScheduler
from regatta.engine.controller.trials import Trials
from regatta.engine.controller.watchdog import DiskPause, Watchdog
from regatta.engine.planning.packer import Packer
from regatta.engine.planning.replanner import Replanner
from regatta.engine.profiling.models import ProfilingRequest
from regatta.engine.profiling.session import RunProfiler
from regatta.errors import PausedError
from regatta.journal.journal_file import Journal, Record, read_lines
from regatta.journal.lock import run_lock
from regatta.journal.run_record import RunRecord
from regatta.paths import JOURNAL, LOGS, MEETINGS
from regatta.search.predict import forecast

MAX_PREDICTED_REPORTS = 2_000  # played to a search, to see which trials it will want
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Runner:
    """The controller of one run."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._run_log = RunLog(settings.listeners, settings.goal.metric, self._wait_for_room)
        self._state_files = StateFiles(settings.folder, settings.dataset)
        self._trials = Trials(settings.search, settings.goal)
        self._scheduled = ScheduledModels()
        self._packer = Packer(settings.orders, settings.dataset.data_of)
        self._replanner = Replanner(
            settings.pool, settings.planner, settings.cluster, self._run_log, self._packer, self._scheduled,
            settings.folder / LOGS / MEETINGS,
        )  # fmt: skip
        self._watchdog = Watchdog(self._wake, settings.unit_limit_s)
        self._disk = DiskPause(self._watchdog, self._state_files.states.folder, self._run_log.show)
        profiling = ProfilingRequest(settings.dataset, settings.goal, cache=settings.profiles)
        self._profiler = RunProfiler(profiling, self._replanner, self._run_log, self._watchdog, self.is_interrupted)
        self._interrupted = False
        self._looping = False

    def run(self) -> RunRecord:
        """Train what the search asks for until it asks for no more."""
        try:
            with run_lock(self._settings.folder), interruptible(self._on_signal):
                # Opening the journal makes all names in the run's folder durable, so this one comes first.
                self._state_files.states.folder.mkdir(exist_ok=True)
                path = self._settings.folder / JOURNAL
                history = list(read_lines(path)) if path.exists() else []
                with Journal(path) as journal:
                    self._run_log.journal = journal
                    self._run_to_end(history)
        finally:
            self._watchdog.close()
            self._replanner.pool.close()
        if self._interrupted:
            raise KeyboardInterrupt
        return self.record

    @property
    def record(self) -> RunRecord:
        return self._run_log.record

    def interrupt(self) -> None:
        """Come to a halt once the states of finished units are durable; may be called from another thread."""
        self._interrupted = True
        self._watchdog.give_up_room()
        if self._looping or self._profiler.under_way:
            self._wake()

    def is_interrupted(self) -> bool:
        return self._interrupted

    def _on_signal(self) -> None:
        self.interrupt()
        if not self._looping:
            raise KeyboardInterrupt  # no state is on its way to the disk

    def _wake(self) -> None:
        self._replanner.pool.wake()

    def _wait_for_room(self, error: OSError) -> None:
        """The journal cannot be written: wait until it can. A run that is interrupted ends without its last records."""
        if not self._interrupted:
            self._disk.begin(f"the journal cannot be written: {error.strerror}")
            self._watchdog.wait_for_room()
        if self._interrupted:
            raise KeyboardInterrupt

    def _run_to_end(self, history: list[tuple[Record, int]]) -> None:
        try:
            loop = self._prepare(history)
            try:
                with ControlServer(self._settings.folder, self._wake) as control:
                    self._looping = True
                    loop.run(control)
            finally:
                self._looping = False
            self._run_log.settle()  # a run that has ended leaves no obsolete states
            self._run_log.write("end", **({"status": "interrupted"} if self._interrupted else self._final_status()))
        except KeyboardInterrupt:
            self._run_log.write("end", status="interrupted")
            raise
        except BaseException as error:
            paused = isinstance(error, PausedError) and bool(self.record.units)
            text = str(error) if isinstance(error, PausedError) else f"{type(error).__name__}: {error}"
            self._run_log.write("end", status="interrupted" if paused else "failed", error=text)
            raise

    def _prepare(self, history: list[tuple[Record, int]]) -> EventLoop:
        """Start or restore the search and its trials, profile or recall profiles, plan, and schedule."""
        if not history:
            self._run_log.write("run", **self._settings.header())
        # Before the search starts: starting it again would make it forget.
        wanted = forecast(self._settings.search, self._settings.goal, MAX_PREDICTED_REPORTS)
        self._trials.start()
        for line, size in history:
            self.record.apply(line, size)
            self._trials.replay_record(line)
        if history:
            self._run_log.write("resume", pid=os.getpid())
            done, all_units = self.record.progress()
            text = f"Resuming {self.record.name}: {done} of {all_units} units are done."
            self._run_log.note("info", text)
            if self._settings.changed_code:
                changed = "; ".join(self._settings.changed_code)
                self._run_log.note("warning", f"Units from here on are trained with changed code: {changed}")
        for trial in self._trials:
            self._run_log.declare(trial)
        lines = [line for line, _ in history]
        self._scheduled.count_packs_from(line["pack"] for line in lines if line.get("pack") is not None)
        found = self._profiler.run(self._trials, lines, wanted)
        self._disk.state_bytes = max((profile.state_bytes for profile in found.models.profiles.values()), default=0)
        ready = self._replanner.begin(found, wanted, lines)
        loop = EventLoop(
            self._settings, self._run_log, self._state_files, self._trials, self._replanner, self._watchdog,
            self._disk, self.is_interrupted,
            TrialScheduler(
                self._settings, self._run_log, self._state_files, self._scheduled, self._packer, self._replanner,
                found.models.estimates,
            ),
            ready,
        )  # fmt: skip
        if history:
            self._state_files.delete_leftovers(self.record)
        profiled = found.models.profiles.keys() - found.models.cached if found.models.ready else ()
        loop.schedule(found.models.failed.values(), profiled)
        return loop

    def _final_status(self) -> dict[str, Any]:
        configs = self.record.configs.values()
        if configs and all(config.error is not None for config in configs):
            return {"status": "failed", "error": "every configuration failed"}
        return {"status": "done"}


@contextmanager
def interruptible(halt: Callable[[], None]) -> Iterator[None]:
    """A scope in which the first Ctrl-C or SIGTERM calls `halt`, and the next one raises KeyboardInterrupt.

    An exception in the middle of a message to a worker would corrupt the connection.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return
    received = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > 1:
            raise KeyboardInterrupt
        halt()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    # A signal that is ignored, as under nohup, stays ignored.
    ours = [number for number in SIGNALS if before[number] in (signal.default_int_handler, signal.SIG_DFL)]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
