"""Which configurations to keep: rules that combine with any search and stop the configurations that break one.

`top(5, "loss", 100)` keeps the five best after 100 iterations. A configuration is stopped as soon as five others are
better at that point, so nothing waits for the slowest, and what remains at the end does not depend on the order of the
reports. `require("accuracy", ">", 0.9, 3, "epochs")` keeps those that are good enough at that point.

A rule decides with the first report at or after its point. The inner search need not know of the rules: it receives the
last report of a stopped configuration again for the epochs that it still waits for, as in stopping.py.
"""

from __future__ import annotations

import math
import operator
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from regatta.checks import is_number
from regatta.configuration import config_id
from regatta.errors import UsageError, nearest
from regatta.format import brief
from regatta.search.base import Action, Goal, Rank, Report, Search, Stop, Train, check_count

AfterUnit: TypeAlias = Literal["iterations", "epochs"]
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "<>": operator.ne,
}  # fmt: skip


@dataclass(frozen=True)
class TopRule:
    """Keep the `k` best in a metric; without a `mode`, in the sense of the sweep."""

    k: int
    metric: str
    after: int
    unit: AfterUnit = "iterations"
    mode: Literal["min", "max"] | None = None

    def describe(self) -> dict[str, Any]:
        return {"kind": "top", **asdict(self)}

    def __str__(self) -> str:
        return f"top({self.k}, {self.metric}, {self.after} {self.unit})"


@dataclass(frozen=True)
class MetricBound:
    """A comparison of a metric with a number; false where the metric is missing or NaN."""

    metric: str
    comparison: str
    bound: float

    def holds(self, metrics: Mapping[str, float]) -> bool:
        value = metrics.get(self.metric, math.nan)
        return not math.isnan(value) and COMPARISONS[self.comparison](value, self.bound)

    def __str__(self) -> str:
        return f"{self.metric} {self.comparison} {self.bound:g}"


@dataclass(frozen=True)
class BoundsRule:
    """Keep those for which one of the alternatives holds; in an alternative, all bounds hold."""

    alternatives: tuple[tuple[MetricBound, ...], ...]
    after: int
    unit: AfterUnit = "epochs"

    def allows(self, metrics: Mapping[str, float]) -> bool:
        return any(all(bound.holds(metrics) for bound in bounds) for bounds in self.alternatives)

    def describe(self) -> dict[str, Any]:
        alternatives = [[asdict(bound) for bound in bounds] for bounds in self.alternatives]
        return {"kind": "require", "alternatives": alternatives, "after": self.after, "unit": self.unit}

    def __str__(self) -> str:
        condition = " or ".join(" and ".join(map(str, bounds)) for bounds in self.alternatives)
        return f"{condition} after {self.after} {self.unit}"


KeepRule: TypeAlias = TopRule | BoundsRule


@dataclass
class _Candidate:
    """A configuration as the rules and the inner search see it."""

    wanted: int
    is_open: bool = True  # it has not failed, and neither the search nor a rule has ended it
    reached: int = 0
    last: Report | None = None
    judged: set[int] = field(default_factory=set)  # the rules whose point it has reached
    broken: int | None = None  # the rule that ended it

    def unchanged(self) -> Iterator[Report]:
        """The reports that the search still waits for, as copies of the last one."""
        if self.broken is not None and self.last is not None:
            while self.reached < self.wanted:
                self.reached += 1
                yield replace(self.last, epoch=self.reached)


class KeepingSearch:
    """A search whose configurations are stopped when they break a rule."""

    def __init__(self, search: Search, rules: Sequence[KeepRule]) -> None:
        self._search, self.rules = search, tuple(rules)

    @property
    def counts_iterations(self) -> bool:
        """Whether a rule needs to know the iterations of a configuration."""
        inner = getattr(self._search, "counts_iterations", False)
        return inner or any(rule.unit == "iterations" for rule in self.rules)

    def describe(self) -> dict[str, Any]:
        rules = [rule.describe() for rule in self.rules]
        return {"kind": "keeping", "rules": rules, "search": self._search.describe()}

    def start(self, goal: Goal) -> list[Action]:
        self._goals = [_goal_of(rule, goal) for rule in self.rules]
        self._candidates: dict[str, _Candidate] = {}
        self._ranked: list[list[tuple[Rank, str]]] = [[] for _ in self.rules]  # best first; equal ones by their ids
        return list(self._pass_on(self._search.start(goal)))

    def hear(self, report: Report) -> list[Action]:
        candidate = self._candidates.get(report.config)
        if candidate is None or candidate.broken is not None:
            return []
        candidate.reached, candidate.last = report.epoch, report
        candidate.is_open = candidate.is_open and not report.failed
        broken = [] if report.failed else self._judge(report, candidate)
        stops: list[Action] = [Stop(config) for config in broken if self._end(config)]
        return [*stops, *self._consult(report, broken)]

    def enter(self, config: str) -> None:
        """Judge the reports of a configuration that the search did not ask for."""
        self._candidates.setdefault(config, _Candidate(0))

    def verdicts(self) -> dict[str, KeepRule | None]:
        """The rule that each configuration broke, None for those that broke none so far."""
        found = self._candidates.items()
        return {
            config: None if candidate.broken is None else self.rules[candidate.broken] for config, candidate in found
        }

    def _judge(self, report: Report, candidate: _Candidate) -> list[str]:
        """The configurations that break a rule because of this report; their rules are noted."""
        broken: list[str] = []
        for number, rule in enumerate(self.rules):
            at = report.iterations if rule.unit == "iterations" else report.epoch
            if number in candidate.judged or at < rule.after:
                continue
            candidate.judged.add(number)
            if isinstance(rule, BoundsRule):
                found = [] if rule.allows(report.metrics) else [report.config]
            else:
                ranked = self._ranked[number]
                insort(ranked, (self._goals[number].rank(report.metrics), report.config))
                found = [config for _, config in ranked[rule.k :]]
            for config in found:
                if self._candidates[config].broken is None:
                    self._candidates[config].broken = number
                    broken.append(config)
        return broken

    def _end(self, config: str) -> bool:
        """End a configuration that broke a rule; returns whether it was in training."""
        candidate = self._candidates[config]
        training = candidate.is_open and candidate.reached < candidate.wanted
        candidate.is_open = False
        return training

    def _consult(self, report: Report, broken: Sequence[str]) -> Iterator[Action]:
        """The search's answers to a report, and to the copied reports of configurations that were ended."""
        reports = deque([report])
        for config in broken:
            reports.extend(self._candidates[config].unchanged())
        while reports:
            for action in self._search.hear(reports.popleft()):
                yield from self._pass_on([action])
                reports.extend(self._candidates[_config_of(action)].unchanged())

    def _pass_on(self, actions: Sequence[Action]) -> Iterator[Action]:
        """Record the search's actions, and pass them on except for configurations that broke a rule."""
        for action in actions:
            name = _config_of(action)
            if isinstance(action, Train):
                candidate = self._candidates.setdefault(name, _Candidate(action.epochs))
                candidate.wanted, candidate.is_open = action.epochs, candidate.broken is None
            else:
                candidate = self._candidates[name]
                candidate.wanted, candidate.is_open = min(candidate.wanted, candidate.reached), False
            if candidate.broken is None:
                yield action


class _NoSearch:
    """A search that wants nothing: reports are only judged."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "none"}

    def start(self, goal: Goal) -> list[Action]:
        return []

    def hear(self, report: Report) -> list[Action]:
        return []


def judge(rules: Sequence[KeepRule], goal: Goal, reports: Iterable[Report]) -> dict[str, KeepRule | None]:
    """The rule that each configuration broke by these reports, in their order."""
    search = KeepingSearch(_NoSearch(), rules)
    search.start(goal)
    for report in reports:
        search.enter(report.config)
        search.hear(report)
    return search.verdicts()


def rules_of(description: Mapping[str, Any]) -> list[KeepRule]:
    """The rules in the description of a search, which may be inside of others."""
    inner = description.get("search")
    found = rules_of(inner) if isinstance(inner, Mapping) else []
    if description.get("kind") != "keeping":
        return found
    return [*found, *map(_rule_of, description["rules"])]


def _rule_of(fields: Mapping[str, Any]) -> KeepRule:
    given = {name: value for name, value in fields.items() if name != "kind"}
    if fields["kind"] == "top":
        return TopRule(**given)
    alternatives = tuple(tuple(MetricBound(**bound) for bound in bounds) for bounds in given["alternatives"])
    return BoundsRule(alternatives, given["after"], given["unit"])


def _config_of(action: Action) -> str:
    return config_id(action.config) if isinstance(action, Train) else action.config


def _goal_of(rule: KeepRule, goal: Goal) -> Goal:
    if isinstance(rule, BoundsRule):
        return goal
    if rule.mode is None and rule.metric != goal.metric:
        raise UsageError(
            f"{rule}: {rule.metric!r} is not the metric of the sweep, so it is not known whether less is better.",
            hint='Say so: mode="min" or mode="max".',
        )
    return replace(goal, metric=rule.metric, mode=rule.mode or goal.mode)


def top(
    k: int,
    metric: str = "loss",
    after: int = 1,
    unit: AfterUnit = "iterations",
    mode: Literal["min", "max"] | None = None,
) -> TopRule:
    """The rule that keeps the k best after a number of iterations or epochs."""
    check_count("top", "k", k)
    _check_metric("top", metric)
    _check_point("top", after, unit)
    if mode not in ("min", "max", None):
        raise UsageError(f'top(mode={brief(mode)}): mode must be "min" or "max".')
    return TopRule(k, metric, after, unit, mode)


def require(metric: str, comparison: str, bound: float, after: int = 1, unit: AfterUnit = "epochs") -> BoundsRule:
    """The rule that keeps those whose metric compares like this after a number of iterations or epochs."""
    _check_metric("require", metric)
    if comparison not in COMPARISONS:
        raise UsageError(f"require(comparison={brief(comparison)}): the comparison is one of {', '.join(COMPARISONS)}.")
    if not is_number(bound):
        raise UsageError(f"require(bound={brief(bound)}): the bound must be a finite number.")
    _check_point("require", after, unit)
    return BoundsRule(((MetricBound(metric, comparison, float(bound)),),), after, unit)


def keeping(search: Search, *rules: KeepRule) -> KeepingSearch:
    """The same search, whose configurations are stopped when they break one of the rules.

    `keeping(search.grid(...), top(5, "loss", 100), require("accuracy", ">", 0.9, 3))`
    """
    if not hasattr(search, "hear") or not hasattr(search, "start"):
        raise UsageError(f"keeping needs a search, not {brief(search)}.", hint='keeping(grid(...), top(5, "loss"))')
    if not rules:
        raise UsageError("keeping without a rule changes nothing.", hint='Give top(5, "loss", 100), or require(...).')
    for rule in rules:
        if not isinstance(rule, TopRule | BoundsRule):
            raise UsageError(f"{brief(rule)} is not a rule.", hint="Rules are made by top(...) and require(...).")
    return KeepingSearch(search, rules)


def _check_metric(call: str, metric: object) -> None:
    if not isinstance(metric, str) or not metric:
        raise UsageError(f"{call}(metric={brief(metric)}): the metric is a name such as 'loss'.")


def _check_point(call: str, after: object, unit: str) -> None:
    check_count(call, "after", after)
    units = ("iterations", "epochs")
    if unit not in units:
        raise UsageError(
            f"{call}(unit={brief(unit)}): {brief(unit)} is not known.", candidates=nearest(str(unit), units)
        )
