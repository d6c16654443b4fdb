"""Plans as text, in pairs of files: measurements (JSON), and the text of the plan for them.

A new text is made by hand from `python tests/plan/strategy/test_explain.py NAME`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
from locations import FIXTURES

from regatta.plan.strategy.choose import Constraints, choose
from regatta.plan.strategy.costs import ClusterSpec, Strategy
from regatta.plan.strategy.form_packs import PackRate
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.plan.strategy.plan_tree import Plan, RejectedStrategy
from regatta.plan.strategy.workload import ModelCosts, PlannedModel, SweepProfile, kind_names

PLANS = FIXTURES / "plan"


def profiled(given: dict[str, Any]) -> SweepProfile:
    models = {}
    for number, kind in enumerate(given["models"]):
        costs = ModelCosts(**{k: v for k, v in kind.items() if k not in ("count", "values", "epochs", "build")})
        for index in range(kind["count"]):
            values = {**kind["values"], "lr": 0.1 / (index + 1)}
            models[f"m{number}-{index}"] = PlannedModel(kind["epochs"], values, costs, kind.get("build", ""))
    rates = {build: PackRate(**rate) for build, rate in given.get("rates", {}).items()}
    communication = {build: Communication(ratio) for build, ratio in given.get("communication", {}).items()}
    forced = bool(given.get("constraints", {}).get("pack"))
    return SweepProfile(models, rates, communication, packs_forced=forced)


def explained(name: str) -> Plan:
    given = json.loads((PLANS / f"{name}.json").read_text())
    constraints = Constraints(**given.get("constraints", {}))
    work, cluster = profiled(given).work(), ClusterSpec(**given["cluster"])
    return choose(work, cluster, numerics=given.get("numerics", "exact"), constraints=constraints)[1]


@pytest.mark.parametrize("name", sorted(path.stem for path in PLANS.glob("*.json")))
def test_the_text_of_the_plan(name: str) -> None:
    plan = explained(name)
    assert plan.text() + "\n" == (PLANS / f"{name}.txt").read_text()
    assert max(map(len, plan.text().splitlines())) <= 100
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_the_reason_is_below_a_long_name() -> None:
    plan = explained("one_large_model_exact")
    name = "groups of 2, groups of 4, groups of 2 + share, groups of 4 + share"
    lines = replace(plan, rejected=(RejectedStrategy(name, "too slow"),)).text().splitlines()
    assert lines[-2:] == [f"  {name}", " " * 38 + "too slow"]


@pytest.mark.parametrize(
    ("rates", "long_steps", "why"),
    [
        ({"b": PackRate(2, 1.0)}, False, "2 models together are no faster than one after another"),
        ({"b": PackRate(2, 1.1)}, False, "2 models together are 1.1 times as fast as one after another"),
        ({}, False, "not tried: too little to train for a trial to pay"),
        ({}, True, "not tried: one model keeps its processor busy"),
    ],
)
def test_the_plan_says_why_nothing_is_packed(rates: dict[str, PackRate], long_steps: bool, why: str) -> None:
    models = {name: PlannedModel(2, {"name": name}, ModelCosts(1.0), "b") for name in "ab"}
    rejected = SweepProfile(models, rates, long_steps=long_steps).why_not_packed()
    assert rejected is not None and rejected.why == why


def test_models_of_one_build_that_take_much_longer_are_another_kind() -> None:
    """Otherwise a plan would promise less than the slowest of them takes."""
    seconds = {"a": 1.0, "b": 1.4, "c": 1.1, "slow": 9.0, "slower": 15.0}
    models = {name: PlannedModel(2, {"name": name}, ModelCosts(took), "b") for name, took in seconds.items()}
    estimated = PlannedModel(2, {}, ModelCosts(12.0), "b", profiled=False)
    profile = SweepProfile({**models, "estimated": estimated})
    assert profile.alike() == [["a", "b", "c"], ["slow", "slower", "estimated"]]
    assert [kind.seconds for kind in profile.work().kinds] == pytest.approx([3.5 / 3, 12.0])


def test_models_of_one_build_with_equally_many_epochs_are_one_kind() -> None:
    costs = ModelCosts(2.0)
    profile = SweepProfile(
        {
            "one": PlannedModel(3, {"lr": 1}, costs, "b"),
            "two": PlannedModel(3, {"lr": 2}, costs, "b", profiled=False),
            "long": PlannedModel(9, {"lr": 3}, costs, "b", profiled=False),
            "other": PlannedModel(3, {"lr": 4}, ModelCosts(8.0)),
            "unknown": PlannedModel(3, {"lr": 5}, ModelCosts(5.0), profiled=False),
        }
    )
    assert profile.alike() == [["one", "two"], ["long"], ["other"], ["unknown"]]
    assert [kind.seconds for kind in profile.work().kinds] == [2.0, 2.0, 8.0, 5.0]


def test_sizes_of_packs_go_from_kinds_to_builds_and_back() -> None:
    given = json.loads((PLANS / "packs_of_some_kinds.json").read_text())
    profile = profiled(given)
    chosen, _ = choose(profile.work(), ClusterSpec(**given["cluster"]))
    sizes = profile.pack_sizes(chosen)
    assert sizes["tiny"] > 1 == sizes["large"]
    assert profile.strategy(sizes, 1, False) == chosen
    assert profile.strategy({"tiny": 64}, 2, True) == Strategy((32, 1), 2, True)  # there are only 32


def test_kinds_are_named_by_the_values_that_distinguish_them() -> None:
    kinds = [[{"depth": 2, "lr": 0.1, "act": "relu"}, {"depth": 2, "lr": 0.2, "act": "relu"}],
             [{"depth": 3, "lr": 0.1, "act": "relu"}, {"depth": 3, "lr": 0.2, "act": "relu"}]]  # fmt: skip
    assert kind_names(kinds) == ["with depth=2", "with depth=3"]
    assert kind_names(kinds[:1]) == ["of one kind"]
    assert len(set(kind_names([[{"x": 1}], [{"x": 1}]]))) == 2


def test_unknown_fields_of_an_older_journal_are_ignored() -> None:
    plan = explained("one_large_and_many_small_models")
    fields = plan.to_json()
    fields["root"]["rule"] = ""
    for part in fields["root"]["parts"]:
        part["since"] = "long ago"
    assert Plan.from_json(fields) == plan
    for part in fields["root"]["parts"]:
        part.pop("models", None)
    assert Plan.from_json(fields).name == plan.name


if __name__ == "__main__":
    print(explained(sys.argv[1]).text())
