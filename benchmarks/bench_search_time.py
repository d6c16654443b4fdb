"""How long a search takes to answer a report, with 1,000 configurations.

    python benchmarks/bench_search_time.py

Every search runs to its end on made-up reports; nothing is trained. `mean` and `slowest` are milliseconds of `hear`.
A report that ends a rung or a generation is answered with many actions: `slowest` shows it, and `us per action` what
one costs. Of Optuna's samplers the time inside Optuna is measured apart; they are left out where it is not installed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from report import Bar, report

from regatta import search
from regatta.configuration import config_id
from regatta.search import Action, Goal, Report, Search, Stop, Train

CONFIGURATIONS = 1000
LIMIT_MS = 2.0
SPACE = {"lr": search.loguniform(1e-5, 1e-1), "width": search.integers(8, 512, log=True), "act": ["relu", "tanh"]}


@dataclass
class Clock:
    """Seconds inside a search, and of those inside Optuna."""

    answers: list[float] = field(default_factory=list)
    elsewhere: float = 0.0
    actions: int = 0
    configurations: int = 0


def main() -> None:
    with_optuna = importlib.util.find_spec("optuna") is not None
    cases = {**_own(), **(_optunas(_arguments().tpe) if with_optuna else {})}
    rows, bars = [], []
    for name, (procedure, epochs) in cases.items():
        clock = _time(procedure, Goal("loss", "min", epochs, seed=0))
        ours = sum(clock.answers) - clock.elsewhere
        mean, theirs = 1e3 * ours / len(clock.answers), 1e3 * clock.elsewhere / len(clock.answers)
        per_action = 1e6 * ours / clock.actions if clock.actions else 0.0
        slowest = 1e3 * max(clock.answers)
        rows.append([name, clock.configurations, len(clock.answers), mean, theirs, slowest, per_action])
        bars.append(Bar(f"{name}: ms per report", mean, LIMIT_MS))
    columns = ["search", "configurations", "reports", "mean", "inside Optuna", "slowest", "us per action"]
    report("search_time", columns, rows, bars=bars, peers=["optuna"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tpe", type=int, default=CONFIGURATIONS, help="configurations that TPE proposes")
    return parser.parse_args()


def _own() -> dict[str, tuple[Search, int]]:
    n, rules = CONFIGURATIONS, {"lr": search.factor(0.8, 1.25), "act": search.resample()}
    return {
        "grid": (search.grid(lr=[i / n for i in range(1, n + 1)]), 3),
        "random": (search.random(SPACE, n=n), 3),
        "hyperband": (search.hyperband(SPACE), 729),  # the R that begins with about a thousand
        "asha": (search.asha(SPACE, n=n), 27),
        "asha, all at once": (search.asha(SPACE, n=n, at_once=n), 27),
        "pbt": (search.pbt(SPACE, population=n, every=2, mutate=rules), 8),
        "hyperband with patience": (search.stopping(search.hyperband(SPACE), patience=5, epochs=10**9), 729),
    }


def _optunas(tpe: int) -> dict[str, tuple[Search, int]]:
    import optuna

    pruner = optuna.pruners.SuccessiveHalvingPruner()
    return {
        "optuna, random": (search.optuna(SPACE, n=CONFIGURATIONS, sampler="random"), 3),
        "optuna, random and pruner": (search.optuna(SPACE, n=CONFIGURATIONS, sampler="random", pruner=pruner), 3),
        f"optuna, tpe ({tpe})": (search.optuna(SPACE, n=tpe, sampler="tpe"), 3),
    }


def _time(procedure: Search, goal: Goal) -> Clock:
    """Reports in turn, an epoch of each configuration that has epochs left; metrics are drawn."""
    clock, random = Clock(), Random(0)
    wanted: dict[str, int] = {}
    reached: dict[str, int] = {}
    values: dict[str, Any] = {}
    queue: deque[str] = deque()

    def act(actions: list[Action]) -> None:
        clock.actions += len(actions)
        for action in actions:
            if isinstance(action, Stop):
                wanted[action.config] = 0
            else:
                _train(action)

    def _train(action: Train) -> None:
        name = config_id(action.config)
        if reached.setdefault(name, 0) >= wanted.get(name, 0):
            queue.append(name)
        wanted[name], values[name] = action.epochs, action.config

    act(procedure.start(goal))
    clock.actions = 0
    with _optuna_watched(clock):
        while queue:
            name = queue.popleft()
            if reached[name] >= wanted[name]:
                continue
            reached[name] += 1
            heard = Report(name, values[name], reached[name], {"loss": random.random()})
            start = time.perf_counter()
            answer = procedure.hear(heard)
            clock.answers.append(time.perf_counter() - start)
            act(answer)
            if reached[name] < wanted[name]:
                queue.append(name)
    clock.configurations = len(wanted)
    return clock


@contextmanager
def _optuna_watched(clock: Clock) -> Iterator[None]:
    """Count the seconds inside Optuna's own functions, those that call each other once."""
    if importlib.util.find_spec("optuna") is None:
        yield
        return
    import optuna

    places = [(optuna.study.Study, ("ask", "tell", "enqueue_trial")), (optuna.trial.Trial, ("report", "should_prune"))]
    kept = [(owner, name, getattr(owner, name)) for owner, names in places for name in names]
    depth = [0]
    for owner, name, function in kept:
        setattr(owner, name, _counted(function, clock, depth))
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def _counted(function: Callable[..., Any], clock: Clock, depth: list[int]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        depth[0] += 1
        try:
            return function(*args, **options)
        finally:
            depth[0] -= 1
            if depth[0] == 0:
                clock.elsewhere += time.perf_counter() - start

    return counted


if __name__ == "__main__":
    main()
