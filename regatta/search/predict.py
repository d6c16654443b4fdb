"""How far a search will train each configuration, on one way that it may go: by telling a copy made-up results."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sized
from random import Random

from regatta.configuration import Scalar, config_id, derive_seed
from regatta.search.base import Action, Goal, Report, Search, Stop, Train
from regatta.search.stopping import Stopping

MOST = 20_000  # reports after which it is left at that


def foreseen(search: Search, goal: Goal, most: int = MOST) -> dict[str, Train]:
    """What will be asked for of each configuration; of a search that asks for all at once, exactly that."""
    asked = search.start(goal)
    begun = {config_id(action.config): action for action in asked if isinstance(action, Train)}
    if all(action.epochs >= goal.epochs for action in begun.values()):
        return begun
    try:
        return _Play(copy.deepcopy(search), goal).play(most) or begun
    except Exception:  # noqa: BLE001 (a search of the user's own may make nothing of what was made up)
        return begun


def caveat(search: Search, goal: Goal, found: dict[str, Train], most: int = MOST) -> str:
    """What is to be known of what was foreseen; nothing where that is all."""
    if all(action.epochs >= goal.epochs for action in found.values()):
        if isinstance(search, Stopping):
            return "counted are all epochs; models may be stopped before"
        if not isinstance(search, Sized):
            return "counted is what the search begins with; it may ask for more later"
        return "" if len(search) == len(found) else f"counted are the {len(found)} of {len(search)} that it begins with"
    cut = sum(action.epochs for action in found.values()) >= most
    return f"the search was followed for {most:,} epochs, and may go on" if cut else ""


class _Any(dict[str, float]):
    """Metrics that have every name that is asked for."""

    def __init__(self, known: dict[str, float], value: float) -> None:
        super().__init__(known)
        self._value = value

    def __missing__(self, name: str) -> float:
        return self._value


class _Play:
    def __init__(self, search: Search, goal: Goal) -> None:
        self._search, self._goal = search, goal
        self._values: dict[str, dict[str, Scalar]] = {}
        self._wanted: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._due: deque[str] = deque()

    def play(self, most: int) -> dict[str, Train]:
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
            report = Report(name, self._values[name], self._done[name], _Any({self._goal.metric: value}, value))
            self._act(self._search.hear(report))
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
