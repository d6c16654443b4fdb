"""What is to blame for a failure: a configuration, or the data, a worker, a module, a connection.

A death of a worker before its unit has begun says nothing about a model. Neither does an error that every configuration
has in common. So a failure is held back until a unit of another configuration proves that models can be trained. If
there is no proof, the run pauses and none has failed: for errors of files, modules and connections, and if several
configurations have failed in the same way.

Deaths of workers are held back until nothing else is left to train. If a configuration is trained although workers have
died under it, deaths of this kind say little about the others, and these are tried more often.

An error may also leave the process of its worker unusable, as a failed assertion on a GPU does. So of two errors in a
process without a finished unit in between, only the first one counts. In a process that joined, none counts before its
first finished unit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from regatta.engine.controller.trials import Trial
from regatta.engine.messages import Cause
from regatta.errors import PausedError
from regatta.format import count

MAX_WORKERS_LOST = 3  # a trial that loses this many workers, without a finished unit in between, has failed
MAX_EARLY_DEATHS = 10  # of workers before their units have begun, without a finished unit in between
KILLED_WEIGHT = 0.3  # of the death of a worker that was killed from outside, or as others were that go on
DELAYS_S = (1.0, 2.0, 4.0, 8.0, 15.0)  # before what failed is tried again

FailureCause: TypeAlias = Cause | Literal["death"]


@dataclass(frozen=True)
class HeldFailure:
    """A failure that is not yet known to be the configuration's own."""

    trial: Trial
    place: dict[str, Any]
    error: str
    traceback: str
    kind: str  # equal for failures that are alike
    since: float  # a unit that began later and finished proves that models can be trained
    cause: FailureCause = "model"


@dataclass
class Deaths:
    """The workers that a trial has lost since its last finished unit."""

    since: float  # when the first unit began that ended with a lost worker
    killed: int = 0  # from outside
    reasons: list[str] = field(default_factory=list)  # of the others

    def __len__(self) -> int:
        return self.killed + len(self.reasons)


class Faults:
    """Failures of a session that are held back, and the evidence that decides about them."""

    def __init__(self, run: str, later: Callable[[float], None]) -> None:
        """`later` is called with the moment, of `time.monotonic`, at which `take_due` should be called."""
        self._run = run
        self._later = later
        self.held: dict[str, HeldFailure] = {}  # by trial
        self._begun: dict[str, float] = {}  # the start of the last unit of each configuration that finished
        self._started: dict[str, float] = {}  # by worker: the start of its unit
        self._deaths: dict[str, Deaths] = {}  # by trial
        self._survived: set[str] = set()  # reasons for which a trial has lost workers that went on nevertheless
        self._early_deaths = 0.0
        # Workers whose process raised an error, or joined, and has finished no unit since.
        self._doubtful: set[str] = set()
        self._failed_at: dict[str, float] = {}  # by trial: its first failure that is tried again
        self._tries: dict[Hashable, int] = {}
        self._due: list[tuple[float, Callable[[], None]]] = []

    # -- evidence ------------------------------------------------------------------------------------

    def start_unit(self, worker: str) -> None:
        self._started[worker] = time.monotonic()

    def on_unit_done(self, worker: str, trials: list[Trial]) -> None:
        """These trials can be trained: workers were lost for other reasons."""
        self._early_deaths = 0.0
        self._doubtful.discard(worker)
        for trial in trials:
            self._begun[trial.id] = self._started.get(worker, 0.0)
            if trial.id in self._deaths:
                self._survived.update(self._deaths[trial.id].reasons)
            self.forget(trial)

    def forget(self, trial: Trial) -> None:
        """Forget what has failed in a trial, which can be trained or is to be tried again."""
        self._deaths.pop(trial.id, None)
        self._failed_at.pop(trial.id, None)
        self._tries.pop(trial.id, None)

    def on_new_process(self, worker: str, joined: bool) -> None:
        """A process that joined by itself may be unfit: it has another environment, and perhaps another device."""
        if joined:
            self._doubtful.add(worker)
        else:
            self._doubtful.discard(worker)

    def on_error(self, worker: str) -> bool:
        """A unit raised an error that its trial may be to blame for; False if its process may be to blame instead."""
        counts = worker not in self._doubtful
        self._doubtful.add(worker)
        return counts

    def on_profile(self, config: str) -> None:
        """A few batches of a configuration were trained before the first unit."""
        self._begun.setdefault(config, 0.0)

    def _is_proven(self, failure: HeldFailure) -> bool:
        others = (begun for config, begun in self._begun.items() if config != failure.trial.id)
        return max(others, default=-math.inf) >= failure.since

    # -- deaths --------------------------------------------------------------------------------------

    def on_early_death(self, worker: str, reason: str, killed: bool, data: str) -> None:
        """A worker died before its unit had begun: no trial is to blame, and the unit is done again."""
        self._early_deaths += KILLED_WEIGHT if killed else 1.0
        if self._early_deaths >= MAX_EARLY_DEATHS:
            text = "Workers die before they begin a unit, while they read its data, again and again."
            raise self.pause(f"{text} The last, {worker}, {reason}; its data was {data}.")

    def on_death(self, worker: str, trial: Trial, reason: str, killed: bool) -> bool:
        """A worker died while it trained a trial; whether that was once too often."""
        deaths = self._deaths.setdefault(trial.id, Deaths(since=self._started.get(worker, 0.0)))
        if killed:
            deaths.killed += 1
        else:
            deaths.reasons.append(reason)
        return self._is_suspect(trial)

    def _is_suspect(self, trial: Trial) -> bool:
        deaths = self._deaths[trial.id]
        weights = (KILLED_WEIGHT if reason in self._survived else 1.0 for reason in deaths.reasons)
        return KILLED_WEIGHT * deaths.killed + sum(weights) >= MAX_WORKERS_LOST

    def deaths_of(self, trial: Trial) -> Deaths:
        return self._deaths[trial.id]

    # -- failures that are held back -------------------------------------------------------------------

    def failing_since(self, trial: Trial) -> float:
        return self._failed_at.setdefault(trial.id, time.monotonic())

    def hold(self, failure: HeldFailure) -> None:
        failure.trial.held = True
        self.held[failure.trial.id] = failure

    def take_survivors(self) -> list[Trial]:
        """The trials that are tried again, because another one was trained after workers had died in the same way."""
        deaths = [failure.trial for failure in self.held.values() if failure.cause == "death"]
        return [self._take(trial.id).trial for trial in deaths if not self._is_suspect(trial)]

    def take_proven(self, nothing_else: bool) -> list[HeldFailure]:
        """The failures that are the configurations' own; raises if `nothing_else` is left and that is not known."""
        for failure in [failure for failure in self.held.values() if failure.trial.stopped]:
            self._take(failure.trial.id)
        nothing_else = nothing_else and not self._due  # what is tried again may be the proof
        failures = list(self.held.values())
        proven = [failure for failure in failures if self._is_proven(failure)]
        if not nothing_else:
            proven = [failure for failure in proven if failure.cause != "death"]
        elif not proven:
            self._check_own(failures)
            proven = failures
        return [self._take(failure.trial.id) for failure in proven]

    def _take(self, trial: str) -> HeldFailure:
        failure = self.held.pop(trial)
        failure.trial.held = False
        return failure

    def _check_own(self, failures: Sequence[HeldFailure]) -> None:
        """Raise if the failures of all that is left may have another cause than the configurations."""
        alike = len(failures) > 1 and len({failure.kind for failure in failures}) == 1
        missing = [failure for failure in failures if failure.cause == "environment"]
        if not alike and not missing:
            return
        first, how = (missing or failures)[0], " in the same way" if alike else ""
        text = f"{count(len(failures), 'configuration')} failed{how}, and none was trained since."
        raise self.pause(f"{text} {first.trial.id}: {first.error}\n{first.traceback}".rstrip())

    def pause(self, text: str) -> PausedError:
        hint = f"No configuration is marked as failed. Mend the cause, then resume the run: regatta resume {self._run}"
        return PausedError(text, hint=f"{hint}\nTo go on without a configuration: regatta stop {self._run} CONFIG")

    # -- what is tried again ---------------------------------------------------------------------------

    def next_delay(self, what: Hashable) -> float | None:
        """Seconds until something that failed is tried again; None if it was tried often enough."""
        tries = self._tries[what] = self._tries.get(what, 0) + 1
        return DELAYS_S[tries - 1] if tries <= len(DELAYS_S) else None

    def works(self, what: Hashable) -> None:
        self._tries.pop(what, None)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        moment = time.monotonic() + delay
        self._due.append((moment, action))
        self._later(moment)

    def take_due(self) -> list[Callable[[], None]]:
        now = time.monotonic()
        due = [action for moment, action in self._due if moment <= now]
        self._due = [(moment, action) for moment, action in self._due if moment > now]
        return due

    @property
    def waits(self) -> bool:
        """Whether something is held back or will be tried again."""
        return bool(self.held or self._due)
