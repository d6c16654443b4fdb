"""A forecast of the epochs that a search will ask for: a copy of it is run on made-up results."""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Sized
from functools import partial
from random import Random

from regatta.configuration import Scalar, config_id
from regatta.search.base import Action, Goal, Report, Search, Stop, Train
from regatta.search.keep import KeepingSearch
from regatta.search.stopping import Stopping
from regatta.seeds import derive_seed

MAX_REPORTS = 20_000  # the forecast ends after this many reports


def forecast(search: Search, goal: Goal, most: int = MAX_REPORTS) -> dict[str, Train]:
    """The training that the search will ask for, by configuration; exact for a search that asks for all at once."""
    asked = search.start(goal)
    begun = {config_id(action.config): action for action in asked if isinstance(action, Train)}
    if all(action.epochs >= goal.epochs for action in begun.values()):
        return begun
    try:
        return _SimulatedSearch(copy.deepcopy(search), goal).run(most) or begun
    except Exception:  # noqa: BLE001 (a user's own search may raise anything on made-up results)
        return begun


def describe_forecast_limits(search: Search, goal: Goal, found: dict[str, Train], most: int = MAX_REPORTS) -> str:
    """What the forecast does not include, as text; empty where it is complete."""
    if all(action.epochs >= goal.epochs for action in found.values()):
        if isinstance(search, Stopping | KeepingSearch):
            return "all epochs are counted; models may be stopped before"
        if not isinstance(search, Sized):
            return "only the configurations that the search begins with are counted; it may ask for more later"
        return "" if len(search) == len(found) else f"only the first {len(found)} of {len(search)} are counted"
    cut = sum(action.epochs for action in found.values()) >= most
    return f"the search was simulated for {most:,} epochs, and may continue" if cut else ""


class _SimulatedSearch:
    """A search that gets made-up metrics, one epoch of each configuration in turn."""

    def __init__(self, search: Search, goal: Goal) -> None:
        self._search, self._goal = search, goal
        self._values: dict[str, dict[str, Scalar]] = {}
        self._wanted: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._due: deque[str] = deque()

    def run(self, most: int) -> dict[str, Train]:
        self._act(self._search.start(self._goal))
        for _ in range(most):
            if not self._due:
                break
            name = self._due.popleft()
            if self._done[name] >= self._wanted[name]:
                continue
            self._done[name] += 1
            if self._done[name] < self._wanted[name]:
                self._due.append(name)
            value = Random(derive_seed(self._goal.seed, "foreseen", name)).random() + 1.0 / self._done[name]
            metrics = defaultdict(partial(float, value), {self._goal.metric: value})  # has a value for every name
            self._act(self._search.hear(Report(name, self._values[name], self._done[name], metrics)))
        return {name: Train(self._values[name], done) for name, done in self._done.items() if done}

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Stop):
                self._wanted[action.config] = self._done[action.config]
                continue
            name = config_id(action.config)
            self._values.setdefault(name, dict(action.config))
            self._done.setdefault(name, 0)
            self._wanted[name] = action.epochs
            if self._done[name] < action.epochs:
                self._due.append(name)
