"""The planner: strategies from profiles and options, and another plan when units differ from their estimates."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from recipes import small_data

from regatta.data import Dataset
from regatta.engine.messages import ModelProfile
from regatta.engine.planning.planner import AvailableWorkers, Planner, PlanOptions, RunStrategy
from regatta.engine.profiling.models import ModelProfiles, ProfilingResults
from regatta.engine.profiling.packs import builds_of
from regatta.plan.schedule.estimates import Estimates
from regatta.plan.strategy.form_packs import PackRate
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.search.base import Train

PAIR = AvailableWorkers(workers=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"), rows=300)


def results_of(
    data: Dataset, models: int, per_row: float = 0.01, prepare: float = 0.0, gain: float = 0.0
) -> ProfilingResults:
    """Profiled models of one build; with a gain, packs of eight were profiled, too."""
    estimates = Estimates([part.rows or 0 for part in data.train], [part.rows or 0 for part in data.eval])
    profiles = ModelProfiles(estimates)
    for number in range(models):
        profile = ModelProfile(per_row, per_row / 3, 100, 100, 0.002, 1000, ("loss",), build="b", peak_bytes=5000)
        profiles.profiles[f"m{number}"] = profile
        estimates.set_profile(f"m{number}", per_row, per_row / 3, 0.002, prepare)
    builds = builds_of(profiles, {f"m{number}": {"lr": number} for number in range(models)})
    return ProfilingResults(profiles, {"b": PackRate(8, gain)} if gain else {}, builds=builds)


def wanted(models: int, epochs: int = 4) -> dict[str, Train]:
    return {f"m{number}": Train({"lr": number}, epochs) for number in range(models)}


def test_profiles_decide_the_strategy(data: Dataset) -> None:
    planner = Planner(data, PlanOptions())
    plain = planner.decide(results_of(data, 8), wanted(8), PAIR)
    assert (plain.width, plain.share, plain.packs) == (1, False, {"b": 1})
    packed = planner.decide(results_of(data, 8, gain=5.0), wanted(8), PAIR)
    assert packed.packs == {"b": 4} and packed.plan is not None and packed.plan.name == "packs of 4"
    shared = planner.decide(results_of(data, 8, prepare=0.1), wanted(8), PAIR)
    assert shared.share
    assert shared.plan is not None and shared.plan.estimate.memory == 5000


def test_the_plan_says_that_packs_do_not_pay(data: Dataset) -> None:
    strategy = Planner(data, PlanOptions()).decide(results_of(data, 8, gain=1.05), wanted(8), PAIR)
    assert strategy.packs == {"b": 1} and strategy.plan is not None
    assert any("8 models together are 1.1 times as fast" in other.why for other in strategy.plan.rejected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (PlanOptions(pack=False), (1, True, {"b": 1})),
        (PlanOptions(share=False), (1, False, {"b": 4})),
        (PlanOptions(pack=2, share=False), (1, False, {"b": 2})),
        (PlanOptions(group=2, pack=False, share=True), (2, True, {"b": 1})),
    ],
)
def test_options_of_the_sweep_are_kept(
    data: Dataset, options: PlanOptions, expected: tuple[int, bool, dict[str, int]]
) -> None:
    strategy = Planner(data, options).decide(results_of(data, 8, prepare=0.1, gain=5.0), wanted(8), PAIR)
    assert (strategy.width, strategy.share, strategy.packs) == expected


def test_groups_are_tried_only_where_they_may_pay_and_are_allowed(data: Dataset) -> None:
    fast = Planner(data, PlanOptions(numerics="fast"))
    assert fast.groups_may_pay(results_of(data, 1), wanted(1), PAIR)
    assert not fast.groups_may_pay(results_of(data, 8), wanted(8), PAIR)  # there is enough work for all workers
    assert not Planner(data, PlanOptions()).groups_may_pay(results_of(data, 1), wanted(1), PAIR)
    assert not Planner(data, PlanOptions(group=1, numerics="fast")).groups_may_pay(results_of(data, 1), wanted(1), PAIR)
    results = results_of(data, 1)
    assert fast.decide(results, wanted(1), PAIR).width == 1
    results.communication = {"b": Communication(0.1)}
    assert fast.decide(results, wanted(1), PAIR).width == 2
    results.communication = {"b": Communication(1.5)}
    assert fast.decide(results, wanted(1), PAIR).width == 1


def test_without_profiles_there_is_no_plan(data: Dataset) -> None:
    strategy = Planner(data, PlanOptions(group=2)).decide(results_of(data, 0), {}, PAIR)
    assert strategy == RunStrategy(2) and strategy.plan is None


def test_a_new_plan_needs_enough_units_and_twice_as_many_the_next_time(data: Dataset) -> None:
    planner = Planner(data, PlanOptions())
    for _ in range(7):
        planner.observe(math.log(2.0), packed=False)
    assert planner.reason_to_replan(workers=2) == ""
    planner.observe(math.log(2.0), packed=False)
    assert planner.reason_to_replan(workers=2) == "units take 2.00 times as long as estimated"
    assert planner.reason_to_replan(workers=8) == ""  # not two of each worker yet
    planner.on_replanned()
    for _ in range(15):
        planner.observe(math.log(8.0), packed=False)
    assert planner.reason_to_replan(workers=2) == ""
    planner.observe(math.log(8.0), packed=False)
    assert "times as long" in planner.reason_to_replan(workers=2)


def test_packs_that_are_slower_than_expected_are_taken_apart(data: Dataset) -> None:
    planner, results = Planner(data, PlanOptions()), results_of(data, 8, gain=3.0)
    present = planner.decide(results, wanted(8), PAIR)
    assert present.packs == {"b": 4}
    for _ in range(16):
        planner.observe(math.log(1.3), packed=True)
    assert planner.revise(results, wanted(8, 3), PAIR, present).same_strategy(present)  # still faster than one by one
    for _ in range(40):
        planner.observe(math.log(4.0), packed=True)
    later = planner.revise(results, wanted(8, 2), PAIR, present)
    assert later.packs == {"b": 1}
    assert later.plan is not None and later.plan.root.epochs == 16


def test_models_that_train_singly_are_not_packed_later(data: Dataset) -> None:
    planner, results = Planner(data, PlanOptions()), results_of(data, 8, gain=6.0)
    present = RunStrategy(packs={"b": 1})
    assert planner.revise(results, wanted(8), PAIR, present).same_strategy(present)


def test_a_strategy_is_read_from_the_journal(data: Dataset, tmp_path: Path) -> None:
    strategy = Planner(data, PlanOptions()).decide(results_of(data, 8, gain=5.0), wanted(8), PAIR)
    line = {"event": "plan", **strategy.to_record(), "reason": "", "changed": True}
    assert RunStrategy.from_journal([{"event": "run"}, line]) == strategy
    assert RunStrategy.from_journal([{"event": "run"}]) is None


class _Pool:
    """The attributes of a pool that a strategy depends on."""

    packs, workers = True, ("w0", "w1")

    def __init__(self, groupable: bool = True) -> None:
        self.groupable = groupable


@pytest.mark.parametrize(
    ("options", "groupable", "width", "expected"),
    [
        (PlanOptions(numerics="fast"), True, 2, (2, True, {"b": 4})),
        (PlanOptions(), True, 2, (1, True, {"b": 4})),  # the sweep no longer allows rounding
        (PlanOptions(group=1, numerics="fast"), True, 2, (1, True, {"b": 4})),
        (PlanOptions(group=2), False, 1, (2, True, {"b": 4})),
        (PlanOptions(numerics="fast"), True, 4, (1, True, {"b": 4})),  # there are two workers now
        (PlanOptions(numerics="fast"), False, 2, (1, True, {"b": 4})),
        (PlanOptions(pack=False, share=False), True, 1, (1, False, {})),
    ],
)
def test_the_strategy_of_the_journal_is_fitted_to_options_and_pool(
    options: PlanOptions, groupable: bool, width: int, expected: tuple[int, bool, dict[str, int]]
) -> None:
    kept = options.apply_to(RunStrategy(width, True, {"b": 4}), _Pool(groupable))  # type: ignore[arg-type]
    assert (kept.width, kept.share, kept.packs) == expected
