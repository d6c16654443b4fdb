"""Hyperband on the simulated clock: all brackets at once, against one bracket after another.

    python benchmarks/bench_hyperband.py

R=81, eta=3: 128 configurations, 1404 epochs of them in all, 81 of the longest. One epoch of one model on one worker is
the unit of time; a worker has one partition; the real search and the real scheduler decide, workers only pretend. The
bound is max(work / workers, longest model): no order can be faster.

The first rows are for models that are all alike; in the last ones their speeds differ, by a factor of 4 between the
5th and the 95th percentile. Next to them, what the scheduler would make of the same search without knowing how far
configurations may come.
"""

from __future__ import annotations

import dataclasses
import math
from random import Random
from typing import Any

from report import Bar, report

from regatta.configuration import Scalar, config_id
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.simulate import Schedule, simulate, spread_partitions
from regatta.plan.schedule.units import Finished, Unit
from regatta.search import Action, Goal, Report, Search, Train, hyperband, hyperband_brackets, uniform
from regatta.search.hyperband import Bracket
from regatta.seeds import derive_seed

R, ETA = 81, 3
GOAL = Goal("loss", "min", R, seed=0)
LIMITS = {8: 1.03, 16: 1.25}
SPREAD = math.log(4) / 2 / 1.645  # of the logarithm of speeds: 90% of them are within a factor of 4


class Pace:
    """Seconds of a unit: an epoch of the average model takes as long on each number of partitions."""

    noise = 0.0

    def __init__(self, partitions: int, alike: bool) -> None:
        self._partitions = partitions
        self._alike = alike

    def epoch(self, model: str) -> float:
        return 1.0 if self._alike else Random(derive_seed(0, "pace", model)).lognormvariate(0.0, SPREAD)

    def seconds(self, unit: Unit, worker: str) -> float:
        return self.epoch(unit.model) / self._partitions

    def observe(self, unit: Unit, worker: str, seconds: float) -> None:
        """What is given stays as it is."""


class Searched(Hopper):
    """A scheduler that a search drives: epochs are reported as they end, and the answers acted on at once."""

    def __init__(self, workers: int, search: Search, times: Pace, blind: bool) -> None:
        super().__init__(workers, estimates=times)
        self._search, self._blind = search, blind
        self._values: dict[str, dict[str, Scalar]] = {}
        for worker, (train, evals) in spread_partitions(workers, workers).items():
            self.add_worker(worker, train, evals)
        self._act(search.start(GOAL))

    def finish(self, worker: str, now: float = 0.0, seconds: float | None = None) -> Finished:
        finished = super().finish(worker, now, seconds)
        if finished.evaluated:
            config, epoch = finished.unit.model, finished.unit.epoch
            values = self._values[config]
            self._act(self._search.hear(Report(config, values, epoch, {"loss": _loss(values, epoch)})))
        return finished

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            assert isinstance(action, Train)
            name = config_id(action.config)
            if name in self._values:
                self.extend_model(name, action.epochs)
            else:
                self._values[name] = action.config
                self.add_model(name, action.epochs, most=0 if self._blind else action.most)


class Alone:
    """One bracket as a search."""

    def __init__(self, number: int) -> None:
        self._number = number

    def describe(self) -> dict[str, Any]:
        return {"kind": "bracket", "number": self._number}

    def start(self, goal: Goal) -> list[Action]:
        plan = hyperband_brackets(R, ETA)
        sizes = [rungs[0].size for rungs in plan]
        begin = sum(sizes[: self._number])
        asked = hyperband(x=uniform(0, 1), R=R, eta=ETA).start(goal)
        mine = asked[begin : begin + sizes[self._number]]
        self._bracket = Bracket(plan[self._number], [action.config for action in mine if isinstance(action, Train)])
        return self._bracket.ask()

    def hear(self, report: Report) -> list[Action]:
        return self._bracket.hear(report, GOAL.rank(report.metrics))


@dataclasses.dataclass(frozen=True)
class Result:
    makespan: float
    work: float
    longest: float


def main() -> None:
    rows, bars = [], []
    for alike in (True, False):
        for workers in (8, 16, 32):
            together = _run([hyperband(x=uniform(0, 1), R=R, eta=ETA)], workers, alike)
            blind = _run([hyperband(x=uniform(0, 1), R=R, eta=ETA)], workers, alike, blind=True)
            apart = _run([Alone(number) for number in range(len(hyperband_brackets(R, ETA)))], workers, alike)
            bound = max(together.work / workers, together.longest)
            ratios = [result.makespan / bound for result in (together, apart, blind)]
            rows.append(["alike" if alike else "differ", workers, together.makespan, bound, *ratios])
            if alike and workers in LIMITS:
                bars.append(Bar(f"all brackets at once / bound, {workers} workers", ratios[0], LIMITS[workers]))
    columns = ["models", "workers", "makespan", "bound", "at once / bound", "one by one / bound", "blind / bound"]
    report("hyperband", columns, rows, bars=bars, notes={"R": R, "eta": ETA, "time": "epochs of a model on one worker"})


def _run(searches: list[Any], workers: int, alike: bool, blind: bool = False) -> Result:
    """The searches one after another."""
    pace = Pace(workers, alike)
    schedules = [simulate(Searched(workers, search, pace, blind), pace) for search in searches]
    work = sum(schedule.busy for schedule in schedules)
    longest = max(_longest(schedule) for schedule in schedules)
    return Result(sum(schedule.makespan for schedule in schedules), work, longest)


def _longest(schedule: Schedule) -> float:
    seconds: dict[str, float] = {}
    for row in schedule.rows:
        seconds[row.unit.model] = seconds.get(row.unit.model, 0.0) + row.end - row.start
    return max(seconds.values())


def _loss(values: dict[str, Scalar], epoch: int) -> float:
    """A learning curve that orders configurations by x in the end, and less surely in the beginning."""
    x = float(values["x"])  # type: ignore[arg-type]
    return x + Random(derive_seed(1, x, epoch)).gauss(0.0, 0.3) / epoch


if __name__ == "__main__":
    main()
