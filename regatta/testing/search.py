"""The contract of every search, for any reports in any order.

    class TestMine(SearchContract):
        @pytest.fixture
        def search(self) -> Search:
            return mine(...)

The suite simulates a run: it reports configurations that the search asked for, in orders and with metrics that
Hypothesis generates, and checks each answer against the reports before it.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regatta.configuration import Scalar, check_configuration, config_id
from regatta.search.base import Action, Goal, Report, Search, Stop, Train

# `start` resets a search, so one instance serves all examples, and subclasses share these tests by design.
played = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
goals = st.builds(
    Goal,
    metric=st.just("loss"),
    mode=st.sampled_from(["min", "max"]),
    epochs=st.integers(1, 9),
    seed=st.integers(0, 2**63 - 1),
)
metrics = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 0.0]))
ITERATIONS = 10  # of each epoch of a simulated run
Outcome: TypeAlias = float | Literal["missing"] | None  # a metric, a report without it, a failure
outcomes: st.SearchStrategy[Outcome] = st.one_of(metrics, st.none(), st.just("missing"))


@dataclass
class SimulatedRun:
    """A run as the search sees it: it applies the actions, makes reports, and checks both."""

    goal: Goal
    wanted: dict[str, int] = field(default_factory=dict)
    values: dict[str, dict[str, Scalar]] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)  # stopped while one of their epochs was running
    parents: dict[str, str | None] = field(default_factory=dict)
    story: list[Report] = field(default_factory=list)

    def act(self, actions: Iterable[Action]) -> None:
        assert isinstance(actions, list)
        for action in actions:
            if isinstance(action, Train):
                self._train(action)
            else:
                assert isinstance(action, Stop)
                assert action.config in self.wanted, f"stopped {action.config}, which was never trained"
                if action.config in self.open():
                    self.late.add(action.config)
                self.ended.add(action.config)

    def open(self) -> list[str]:
        """Configurations with epochs left, in the order in which the search first asked for them."""
        return [c for c, epochs in self.wanted.items() if self.reached[c] < epochs and c not in self.ended]

    def report(self, config: str, metric: Outcome) -> Report:
        """The next epoch of a configuration; without a metric, its failure."""
        self.reached[config] += 1
        self.late.discard(config)
        failed = metric is None
        if failed:
            self.ended.add(config)
        values = {self.goal.metric: metric} if isinstance(metric, int | float) else {}
        clock = float(len(self.story))
        epoch = self.reached[config]
        report = Report(config, self.values[config], epoch, values, failed, clock, 2 * clock, ITERATIONS * epoch)
        self.story.append(report)
        return report

    def _train(self, action: Train) -> None:
        assert check_configuration(action.config) == action.config
        assert 1 <= action.epochs <= self.goal.epochs
        assert 0 <= action.most <= self.goal.epochs
        config = config_id(action.config)
        if action.parent is not None:
            assert config not in self.wanted, f"{action.config} exists already and cannot get a parent"
            assert self.reached.get(action.parent, 0) > 0, f"the parent {action.parent} was never trained"
        failed = {report.config for report in self.story if report.failed}
        assert config not in failed, f"{action.config} failed and is trained again"
        before = self.wanted.get(config, 0)
        assert action.epochs >= before, f"the epochs of {action.config} shrink from {before} to {action.epochs}"
        resumed = config in self.ended
        assert action.epochs > before or resumed, f"{action.config} is asked for twice, which changes nothing"
        self.wanted[config], self.values[config] = action.epochs, dict(action.config)
        self.reached.setdefault(config, 0)
        self.parents.setdefault(config, action.parent)
        self.ended.discard(config)
        self.late.discard(config)


def play(search: Search, goal: Goal, data: st.DataObject, most: int = 60) -> SimulatedRun:
    """Run a search on generated reports until nothing is left to train, or after `most` reports."""
    run = SimulatedRun(goal)
    run.act(search.start(goal))
    while run.open() and len(run.story) < most:
        config = data.draw(st.sampled_from([*run.open(), *sorted(run.late)]))
        run.act(search.hear(run.report(config, data.draw(outcomes))))
    return run


def run_to_end(search: Search, goal: Goal, metric: Callable[[Mapping[str, Scalar], int], Outcome]) -> SimulatedRun:
    """Run a search to its end: every configuration gets an epoch in turn; `metric(values, epoch)` is its metric."""
    run = SimulatedRun(goal)
    run.act(search.start(goal))
    while waiting := run.open():
        for config in waiting:
            if config in run.open():  # its last report may have stopped others
                run.act(search.hear(run.report(config, metric(run.values[config], run.reached[config] + 1))))
    return run


def answers(search: Search, goal: Goal, story: Iterable[Report]) -> list[list[Action]]:
    return [search.start(goal), *(search.hear(report) for report in story)]


class SearchContract:
    """Inherit it and supply the fixture `search`."""

    @pytest.fixture
    def search(self) -> Search:
        raise NotImplementedError("supply the fixture `search` in the subclass")

    def test_describes_itself_in_plain_values(self, search: Search) -> None:
        description = search.describe()
        assert isinstance(description["kind"], str)
        assert json.loads(json.dumps(description, allow_nan=False)) == description

    @played
    @given(goal=goals)
    def test_starts_with_something_to_train(self, search: Search, goal: Goal) -> None:
        run = SimulatedRun(goal)
        run.act(search.start(goal))
        assert run.open()

    @played
    @given(goal=goals, data=st.data())
    def test_its_actions_are_consistent_for_any_reports(self, search: Search, goal: Goal, data: st.DataObject) -> None:
        play(search, goal, data)

    @played
    @given(goal=goals, data=st.data())
    def test_the_same_reports_get_the_same_answers(self, search: Search, goal: Goal, data: st.DataObject) -> None:
        story = play(search, goal, data).story
        assert answers(search, goal, story) == answers(search, goal, story)

    @played
    @given(goal=goals, other=goals, data=st.data())
    def test_start_forgets(self, search: Search, goal: Goal, other: Goal, data: st.DataObject) -> None:
        story = play(search, goal, data).story
        first = answers(search, goal, story)
        play(search, other, data, most=10)
        assert answers(search, goal, story) == first

    @played
    @given(goal=goals, data=st.data())
    def test_rebuilt_from_a_journal_it_decides_alike(self, search: Search, goal: Goal, data: st.DataObject) -> None:
        """A search that is rebuilt from the first reports, at any point, decides like the original."""
        fresh = copy.deepcopy(search)
        story = play(search, goal, data).story
        undisturbed = answers(search, goal, story)
        cut = data.draw(st.integers(0, len(story)))
        journalled = [Report(**json.loads(json.dumps(asdict(report)))) for report in story[:cut]]
        assert answers(fresh, goal, journalled) == undisturbed[: cut + 1]
        assert [fresh.hear(report) for report in story[cut:]] == undisturbed[cut + 1 :]

    @played
    @given(goal=goals, data=st.data())
    def test_ends(self, search: Search, goal: Goal, data: st.DataObject) -> None:
        """Reports in the order in which epochs were asked for: every search ends."""
        run = SimulatedRun(goal)
        run.act(search.start(goal))
        for _ in range(10_000):
            if not run.open():
                return
            run.act(search.hear(run.report(run.open()[0], data.draw(metrics) if len(run.story) < 20 else 1.0)))
        pytest.fail("still training after 10,000 reports")

    @played
    @given(goal=goals)
    def test_survives_the_failure_of_everything(self, search: Search, goal: Goal) -> None:
        run = SimulatedRun(goal)
        run.act(search.start(goal))
        for _ in range(10_000):
            if not run.open():
                return
            run.act(search.hear(run.report(run.open()[-1], None)))
        pytest.fail("still starting configurations after 10,000 failures")

    @played
    @given(goal=goals, data=st.data())
    def test_its_actions_belong_to_the_caller(self, search: Search, goal: Goal, data: st.DataObject) -> None:
        """Changing a configuration in an action does not change the search."""
        story = play(search, goal, data).story
        expected = copy.deepcopy(answers(search, goal, story))
        given_out = search.start(goal)
        assert given_out == expected[0]
        for report, answer in zip(story, expected[1:], strict=True):
            for action in given_out:
                if isinstance(action, Train):
                    action.config["tampered"] = True
            given_out = search.hear(report)
            assert given_out == answer
