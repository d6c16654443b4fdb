"""When to end: limits that combine with any search.

Patience ends one configuration; all other limits end the search. The inner search need not know: when patience ends a
configuration, the search receives its last report again for the epochs that it still waits for. So no rung and no
generation waits forever, and a configuration that ended early is ranked by what it reached.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from regatta.checks import is_number
from regatta.configuration import config_id
from regatta.errors import UsageError
from regatta.format import brief
from regatta.search.base import Action, Goal, Report, Search, Stop, Train, check_count


@dataclass(frozen=True)
class Limits:
    """None where there is no limit."""

    patience: int | None = None
    min_delta: float = 0.0
    target: float | None = None
    epochs: int | None = None
    hours: float | None = None
    device_hours: float | None = None

    def reached(self, report: Report, goal: Goal, epochs: int) -> bool:
        """Whether the whole search ends with this report, after `epochs` of all configurations."""
        return (
            (self.epochs is not None and epochs >= self.epochs)
            or (self.hours is not None and report.time >= 3600 * self.hours)
            or (self.device_hours is not None and report.device_seconds >= 3600 * self.device_hours)
            or (self.target is not None and goal.rank(report.metrics) <= goal.rank({goal.metric: self.target}))
        )


@dataclass
class _PatienceState:
    """The epochs that a configuration should reach and has reached, and for how long it has not improved."""

    wanted: int
    reached: int = 0
    best: float = math.inf  # in the sense of "min"
    stale: int = 0
    is_open: bool = True  # it has not failed, and neither the search nor patience has ended it
    gave_up: Report | None = None  # its last report, if patience ended it

    def take(self, report: Report, goal: Goal, limits: Limits) -> bool:
        """Take one report into account; returns whether patience ends the configuration now."""
        self.reached = report.epoch
        self.is_open = self.is_open and not report.failed
        no_number, value = goal.rank(report.metrics)
        if self.reached == 1 or (not no_number and value < self.best - limits.min_delta):
            self.best, self.stale = math.inf if no_number else value, 0
        else:
            self.stale += 1
        if not self.is_open or limits.patience is None or self.stale < limits.patience:
            return False
        self.is_open, self.gave_up = False, report
        return True

    def unchanged(self) -> Iterator[Report]:
        """The reports that the search still waits for, as copies of the last one."""
        if self.gave_up is not None:
            while self.reached < self.wanted:
                self.reached += 1
                yield replace(self.gave_up, epoch=self.reached)


class Stopping:
    def __init__(self, search: Search, limits: Limits) -> None:
        self._search, self._limits = search, limits

    @property
    def counts_iterations(self) -> bool:
        """Whether a rule of the inner search needs to know the iterations of a configuration."""
        return bool(getattr(self._search, "counts_iterations", False))

    def describe(self) -> dict[str, Any]:
        limits = {name: value for name, value in vars(self._limits).items() if value is not None}
        return {"kind": "stopping", **limits, "search": self._search.describe()}

    def start(self, goal: Goal) -> list[Action]:
        self._goal = goal
        self._states: dict[str, _PatienceState] = {}
        self._epochs = 0
        self._over = False
        return list(self._pass_on(self._search.start(goal)))

    def hear(self, report: Report) -> list[Action]:
        state = self._states.get(report.config)
        if self._over or state is None or state.gave_up is not None:
            return []
        self._epochs += not report.failed
        if not report.failed and self._limits.reached(report, self._goal, self._epochs):
            state.reached = report.epoch
            self._over = True
            return [Stop(name) for name, one in self._states.items() if one.is_open and one.reached < one.wanted]
        gives_up = state.take(report, self._goal, self._limits)
        stops: list[Action] = [Stop(report.config)] if gives_up and state.reached < state.wanted else []
        return [*stops, *self._consult(report, state)]

    def _consult(self, report: Report, state: _PatienceState) -> Iterator[Action]:
        """The search's answers to a report, and to the copied reports of configurations that patience ended."""
        reports = deque([report, *state.unchanged()])
        while reports:
            for action in self._search.hear(reports.popleft()):
                yield from self._pass_on([action])
                changed = self._states[_config_id(action)]
                reports.extend(changed.unchanged())

    def _pass_on(self, actions: Iterable[Action]) -> Iterator[Action]:
        """Record the search's actions, and pass them on except for configurations that patience ended."""
        for action in actions:
            name = _config_id(action)
            if isinstance(action, Train):
                state = self._states.setdefault(name, _PatienceState(action.epochs))
                state.wanted, state.is_open = action.epochs, state.gave_up is None
            else:
                state = self._states[name]
                state.wanted, state.is_open = min(state.wanted, state.reached), False
            if state.gave_up is None:
                yield action


def _config_id(action: Action) -> str:
    return config_id(action.config) if isinstance(action, Train) else action.config


def stopping(
    search: Search,
    *,
    patience: int | None = None,
    min_delta: float = 0.0,
    target: float | None = None,
    epochs: int | None = None,
    hours: float | None = None,
    device_hours: float | None = None,
) -> Stopping:
    """The same search with limits: `stopping(hyperband(...), patience=3, device_hours=20)`.

    - `patience`: a configuration ends when its metric has not improved by more than `min_delta` for this many epochs.
    - `target`: the search ends when a configuration's metric is at least this good.
    - `epochs`: the search ends after this many epochs of all configurations together.
    - `hours`, `device_hours`: the search ends with the first report after the run, or its workers together, took this
      long.
    """
    if not hasattr(search, "hear") or not hasattr(search, "start"):
        raise UsageError(
            f"stopping needs a search to limit, not {brief(search)}.", hint="stopping(search.grid(...), patience=3)"
        )
    for name, count in (("patience", patience), ("epochs", epochs)):
        if count is not None:
            check_count("stopping", name, count)
    for name, number in (("target", target), ("hours", hours), ("device_hours", device_hours)):
        _check_number(name, number, least=-math.inf if name == "target" else 0.0)
    _check_number("min_delta", min_delta, least=0.0)
    limits = Limits(patience, min_delta, target, epochs, hours, device_hours)
    if limits == Limits(min_delta=min_delta):
        raise UsageError(
            "stopping without a limit changes nothing.",
            hint="Give patience=, target=, epochs=, hours= or device_hours=.",
        )
    return Stopping(search, limits)


def _check_number(name: str, number: object, least: float) -> None:
    if number is None:
        return
    if not is_number(number) or number < least:  # type: ignore[operator]
        bound = "" if least == -math.inf else f" from {least:g}"
        raise UsageError(f"stopping({name}={brief(number)}): {name} must be a finite number{bound}.")
