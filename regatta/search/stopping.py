"""When to end: limits that combine with any search.

Patience ends one configuration; all other limits end the search. A search need not know: of a configuration that ran
out of patience it hears, for the epochs that it still waits for, that nothing has changed. So no rung and no generation
waits for ever, and what stopped early is judged by what it reached.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from regatta.configuration import config_id
from regatta.errors import UsageError
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
        """Is the whole search to end with this report, the one of that many epochs?"""
        return (
            (self.epochs is not None and epochs >= self.epochs)
            or (self.hours is not None and report.time >= 3600 * self.hours)
            or (self.device_hours is not None and report.device_seconds >= 3600 * self.device_hours)
            or (self.target is not None and goal.rank(report.metrics) <= goal.rank({goal.metric: self.target}))
        )


@dataclass
class _Course:
    """How far a configuration is wanted and came, and for how long it has not become better."""

    wanted: int
    reached: int = 0
    best: float = math.inf  # in the sense of "min"
    stale: int = 0
    is_open: bool = True  # neither failed, nor stopped by the search, nor out of patience
    gave_up: Report | None = None  # its last report, if it ran out of patience

    def take(self, report: Report, goal: Goal, limits: Limits) -> bool:
        """Hear of an epoch; returns whether the configuration runs out of patience with it."""
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
        """The reports that are still waited for, as if nothing changed any more."""
        if self.gave_up is not None:
            while self.reached < self.wanted:
                self.reached += 1
                yield replace(self.gave_up, epoch=self.reached)


class Stopping:
    def __init__(self, search: Search, limits: Limits) -> None:
        self._search = search
        self._limits = limits

    def describe(self) -> dict[str, Any]:
        limits = {name: value for name, value in vars(self._limits).items() if value is not None}
        return {"kind": "stopping", **limits, "search": self._search.describe()}

    def start(self, goal: Goal) -> list[Action]:
        self._goal = goal
        self._courses: dict[str, _Course] = {}
        self._epochs = 0
        self._over = False
        return list(self._pass_on(self._search.start(goal)))

    def hear(self, report: Report) -> list[Action]:
        course = self._courses.get(report.config)
        if self._over or course is None or course.gave_up is not None:
            return []
        self._epochs += not report.failed
        if not report.failed and self._limits.reached(report, self._goal, self._epochs):
            course.reached = report.epoch
            return self._end()
        gives_up = course.take(report, self._goal, self._limits)
        stops: list[Action] = [Stop(report.config)] if gives_up and course.reached < course.wanted else []
        return [*stops, *self._consult(report, course)]

    def _consult(self, report: Report, course: _Course) -> Iterator[Action]:
        """What the search answers to a report, and to those of configurations that will not report any more."""
        reports = deque([report, *course.unchanged()])
        while reports:
            for action in self._search.hear(reports.popleft()):
                yield from self._pass_on([action])
                changed = self._courses[_config_of(action)]
                reports.extend(changed.unchanged())

    def _pass_on(self, actions: Iterable[Action]) -> Iterator[Action]:
        """Note what the search wants, and pass it on unless it concerns a configuration that gave up."""
        for action in actions:
            name = _config_of(action)
            if isinstance(action, Train):
                course = self._courses.setdefault(name, _Course(action.epochs))
                course.wanted, course.is_open = action.epochs, course.gave_up is None
            else:
                course = self._courses[name]
                course.wanted, course.is_open = min(course.wanted, course.reached), False
            if course.gave_up is None:
                yield action

    def _end(self) -> list[Action]:
        self._over = True
        return [
            Stop(name) for name, course in self._courses.items() if course.is_open and course.reached < course.wanted
        ]


def _config_of(action: Action) -> str:
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

    - `patience`: a configuration ends when its metric has not become better, by more than `min_delta`, for so many
      epochs.
    - `target`: all ends when a configuration's metric is as good as that.
    - `epochs`: all ends when so many epochs were trained, of all configurations together.
    - `hours`, `device_hours`: all ends with the first report after the run took so long, or its workers together
      trained for so long.
    """
    if not hasattr(search, "hear") or not hasattr(search, "start"):
        raise UsageError(
            f"stopping needs a search to limit, not {search!r}.", hint="stopping(search.grid(...), patience=3)"
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
    is_number = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
    if not is_number or number < least:  # type: ignore[operator]
        bound = "" if least == -math.inf else f" from {least:g}"
        raise UsageError(f"stopping({name}={number!r}): {name} must be a finite number{bound}.")
