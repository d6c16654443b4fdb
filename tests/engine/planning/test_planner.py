"""What is decided of a run: by what pilots found, what was asked for, and how units compare with their estimates."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from recipes import small_data

from regatta.data import Dataset
from regatta.engine.messages import ModelProfile
from regatta.engine.planning.planner import (
    AvailableWorkers,
    Planner,
    PlanOptions,
    RunStrategy,
)
from regatta.engine.profiling.models import ModelProfiles
from regatta.engine.profiling.results import ProfilingResults
from regatta.plan.schedule.estimates import Estimates
from regatta.plan.strategy.form_packs import PackRate
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.search.base import Train

PAIR = AvailableWorkers(workers=2, here=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"), rows=300)


def found(
    data: Dataset, models: int, per_row: float = 0.01, prepare: float = 0.0, gain: float = 0.0
) -> ProfilingResults:
    """Models of one build, all of them tried; packs of eight too, if a gain is given."""
    estimates = Estimates([part.rows or 0 for part in data.train], [part.rows or 0 for part in data.eval])
    outcome = ModelProfiles(estimates)
    for number in range(models):
        result = ModelProfile(per_row, per_row / 3, 100, 100, 0.002, 1000, ("loss",), build="b", peak_bytes=5000)
        outcome.results[f"m{number}"] = result
        estimates.set_profile(f"m{number}", per_row, per_row / 3, 0.002, prepare)
    findings = ProfilingResults(outcome, {"b": PackRate(8, gain)} if gain else {})
    findings.learn_builds({f"m{number}": {"lr": number} for number in range(models)})
    return findings


def wanted(models: int, epochs: int = 4) -> dict[str, Train]:
    return {f"m{number}": Train({"lr": number}, epochs) for number in range(models)}


def test_what_pilots_found_decides(data: Dataset) -> None:
    planner = Planner(data, PlanOptions())
    plain = planner.decide(found(data, 8), wanted(8), PAIR)
    assert (plain.width, plain.share, plain.packs) == (1, False, {"b": 1})
    packed = planner.decide(found(data, 8, gain=5.0), wanted(8), PAIR)
    assert packed.packs == {"b": 4} and packed.plan is not None and packed.plan.name == "packs of 4"
    shared = planner.decide(found(data, 8, prepare=0.1), wanted(8), PAIR)
    assert shared.share
    assert shared.plan is not None and shared.plan.estimate.memory == 5000


def test_packs_that_do_not_pay_are_told_of(data: Dataset) -> None:
    decision = Planner(data, PlanOptions()).decide(found(data, 8, gain=1.05), wanted(8), PAIR)
    assert decision.packs == {"b": 1} and decision.plan is not None
    assert any("8 models side by side are 1.1 times as fast" in other.why for other in decision.plan.rejected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (PlanOptions(pack=False), (1, True, {"b": 1})),
        (PlanOptions(share=False), (1, False, {"b": 4})),
        (PlanOptions(pack=2, share=False), (1, False, {"b": 2})),
        (PlanOptions(group=2, pack=False, share=True), (2, True, {"b": 1})),
    ],
)
def test_what_was_asked_for_is_kept_to(
    data: Dataset, options: PlanOptions, expected: tuple[int, bool, dict[str, int]]
) -> None:
    decision = Planner(data, options).decide(found(data, 8, prepare=0.1, gain=5.0), wanted(8), PAIR)
    assert (decision.width, decision.share, decision.packs) == expected


def test_groups_are_tried_only_where_they_may_pay_and_are_allowed(data: Dataset) -> None:
    fast = Planner(data, PlanOptions(numerics="fast"))
    assert fast.groups_may_pay(found(data, 1), wanted(1), PAIR)
    assert not fast.groups_may_pay(found(data, 8), wanted(8), PAIR)  # there is work enough for everybody
    assert not Planner(data, PlanOptions()).groups_may_pay(found(data, 1), wanted(1), PAIR)
    assert not Planner(data, PlanOptions(group=1, numerics="fast")).groups_may_pay(found(data, 1), wanted(1), PAIR)
    findings = found(data, 1)
    assert fast.decide(findings, wanted(1), PAIR).width == 1
    findings.links = {"b": Communication(0.1)}
    assert fast.decide(findings, wanted(1), PAIR).width == 2
    findings.links = {"b": Communication(1.5)}
    assert fast.decide(findings, wanted(1), PAIR).width == 1


def test_nothing_known_is_no_plan(data: Dataset) -> None:
    decision = Planner(data, PlanOptions(group=2)).decide(found(data, 0), {}, PAIR)
    assert decision == RunStrategy(2) and decision.plan is None


def test_doubts_need_units_enough_and_twice_as_many_the_next_time(data: Dataset) -> None:
    planner = Planner(data, PlanOptions())
    for _ in range(7):
        planner.observe(math.log(2.0), packed=False)
    assert planner.reason_to_replan(workers=2) == ""
    planner.observe(math.log(2.0), packed=False)
    assert planner.reason_to_replan(workers=2) == "units take 2.00 times as long as estimated"
    assert planner.reason_to_replan(workers=8) == ""  # not two of each yet
    planner.on_replanned()
    for _ in range(15):
        planner.observe(math.log(8.0), packed=False)
    assert planner.reason_to_replan(workers=2) == ""
    planner.observe(math.log(8.0), packed=False)
    assert "times as long" in planner.reason_to_replan(workers=2)


def test_packs_that_are_slower_than_expected_are_taken_apart(data: Dataset) -> None:
    planner, findings = Planner(data, PlanOptions()), found(data, 8, gain=3.0)
    present = planner.decide(findings, wanted(8), PAIR)
    assert present.packs == {"b": 4}
    for _ in range(16):
        planner.observe(math.log(1.3), packed=True)
    assert planner.revise(findings, wanted(8, 3), PAIR, present).same_way(present)  # still faster than one by one
    for _ in range(40):
        planner.observe(math.log(4.0), packed=True)
    later = planner.revise(findings, wanted(8, 2), PAIR, present)
    assert later.packs == {"b": 1}
    assert later.plan is not None and later.plan.root.epochs == 16


def test_models_on_their_way_are_not_put_into_packs(data: Dataset) -> None:
    planner, findings = Planner(data, PlanOptions()), found(data, 8, gain=6.0)
    present = RunStrategy(packs={"b": 1})
    assert planner.revise(findings, wanted(8), PAIR, present).same_way(present)


def test_a_decision_is_read_back_from_a_journal(data: Dataset, tmp_path: Path) -> None:
    decision = Planner(data, PlanOptions()).decide(found(data, 8, gain=5.0), wanted(8), PAIR)
    line = {"event": "plan", **decision.to_record(), "reason": "", "changed": True}
    assert RunStrategy.recalled([{"event": "run"}, line]) == decision
    assert RunStrategy.recalled([{"event": "run"}]) is None


class _Pool:
    """What a decision must know of workers."""

    packs, workers = True, ("w0", "w1")

    def __init__(self, groupable: bool = True) -> None:
        self.groupable = groupable


@pytest.mark.parametrize(
    ("options", "groupable", "width", "expected"),
    [
        (PlanOptions(numerics="fast"), True, 2, (2, True, {"b": 4})),
        (PlanOptions(), True, 2, (1, True, {"b": 4})),  # rounding is not allowed any more
        (PlanOptions(group=1, numerics="fast"), True, 2, (1, True, {"b": 4})),
        (PlanOptions(group=2), False, 1, (2, True, {"b": 4})),
        (PlanOptions(numerics="fast"), True, 4, (1, True, {"b": 4})),  # there are two workers now
        (PlanOptions(numerics="fast"), False, 2, (1, True, {"b": 4})),
        (PlanOptions(pack=False, share=False), True, 1, (1, False, {})),
    ],
)
def test_what_was_decided_earlier_holds_as_far_as_it_is_wanted_and_can_be(
    options: PlanOptions, groupable: bool, width: int, expected: tuple[int, bool, dict[str, int]]
) -> None:
    kept = options.kept_to(RunStrategy(width, True, {"b": 4}), _Pool(groupable))  # type: ignore[arg-type]
    assert (kept.width, kept.share, kept.packs) == expected
