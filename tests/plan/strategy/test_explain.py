"""Plans in words, as pairs of files: what was measured (JSON), and what people are told of the plan for it (text).

A new text is made by hand from `python tests/plan/strategy/test_explain.py NAME`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from locations import FIXTURES

from regatta.plan.strategy.choose import Constraints, choose
from regatta.plan.strategy.costs import ClusterSpec, Strategy
from regatta.plan.strategy.form_packs import PackRate
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.plan.strategy.plan_tree import Plan
from regatta.plan.strategy.workload import (
    ModelCosts,
    ProfiledModel,
    SweepProfile,
    kind_names,
)

PLANS = FIXTURES / "plan"


def profiled(given: dict[str, Any]) -> SweepProfile:
    models = {}
    for number, kind in enumerate(given["models"]):
        measured = ModelCosts(**{k: v for k, v in kind.items() if k not in ("count", "values", "epochs")})
        for index in range(kind["count"]):
            values = {**kind["values"], "lr": 0.1 / (index + 1)}
            models[f"m{number}-{index}"] = ProfiledModel(kind["epochs"], values, measured, measured.build)
    rates = {build: PackRate(**rate) for build, rate in given.get("rates", {}).items()}
    links = {build: Communication(ratio) for build, ratio in given.get("links", {}).items()}
    return SweepProfile(models, rates, links, packs_forced=bool(given.get("forced", {}).get("pack")))


def explained(name: str) -> Plan:
    given = json.loads((PLANS / f"{name}.json").read_text())
    forced = Constraints(**given.get("forced", {}))
    work, site = profiled(given).work(), ClusterSpec(**given["site"])
    return choose(work, site, numerics=given.get("numerics", "exact"), forced=forced)[1]


@pytest.mark.parametrize("name", sorted(path.stem for path in PLANS.glob("*.json")))
def test_the_plan_in_words(name: str) -> None:
    plan = explained(name)
    assert plan.text() + "\n" == (PLANS / f"{name}.txt").read_text()
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_models_of_one_build_that_take_much_longer_are_another_kind() -> None:
    """Else a plan would promise less than the longest of them takes."""
    seconds = {"a": 1.0, "b": 1.4, "c": 1.1, "slow": 9.0, "slower": 15.0}
    tried = {name: ProfiledModel(2, {"name": name}, ModelCosts(took, build="b"), "b") for name, took in seconds.items()}
    profile = SweepProfile({**tried, "untried": ProfiledModel(2, {}, None, "b")})
    assert profile.alike() == [["a", "b", "c", "untried"], ["slow", "slower"]]
    assert [kind.seconds for kind in profile.work().kinds] == pytest.approx([3.5 / 3, 12.0])


def test_models_of_one_build_and_as_many_epochs_are_one_kind() -> None:
    measured = ModelCosts(2.0, build="b")
    profile = SweepProfile(
        {
            "one": ProfiledModel(3, {"lr": 1}, measured, "b"),
            "two": ProfiledModel(3, {"lr": 2}, None, "b"),  # not tried, of the same build
            "long": ProfiledModel(9, {"lr": 3}, None, "b"),
            "other": ProfiledModel(3, {"lr": 4}, ModelCosts(8.0)),
            "unknown": ProfiledModel(3, {"lr": 5}),
        }
    )
    assert profile.alike() == [["one", "two"], ["long"], ["other"], ["unknown"]]
    assert [kind.seconds for kind in profile.work().kinds] == [
        2.0,
        2.0,
        8.0,
        5.0,
    ]  # the mean of all, if nothing is known


def test_sizes_of_packs_go_from_kinds_to_builds_and_back() -> None:
    given = json.loads((PLANS / "packs_for_some.json").read_text())
    profile = profiled(given)
    chosen, _ = choose(profile.work(), ClusterSpec(**given["site"]))
    sizes = profile.pack_sizes(chosen)
    assert sizes["tiny"] > 1 == sizes["large"]
    assert profile.choice(sizes, 1, False) == chosen
    assert profile.choice({"tiny": 64}, 2, True) == Strategy((32, 1), 2, True)  # there are no more of them


def test_kinds_are_named_by_what_tells_them_apart() -> None:
    kinds = [[{"depth": 2, "lr": 0.1, "act": "relu"}, {"depth": 2, "lr": 0.2, "act": "relu"}],
             [{"depth": 3, "lr": 0.1, "act": "relu"}, {"depth": 3, "lr": 0.2, "act": "relu"}]]  # fmt: skip
    assert kind_names(kinds) == ["with depth=2", "with depth=3"]
    assert kind_names(kinds[:1]) == ["of one kind"]
    assert len(set(kind_names([[{"x": 1}], [{"x": 1}]]))) == 2


if __name__ == "__main__":
    print(explained(sys.argv[1]).text())


def test_what_an_older_journal_tells_besides_is_passed_over() -> None:
    plan = explained("one_long_beside_short_ones")
    told = plan.to_json()
    told["root"]["rule"] = ""
    for part in told["root"]["parts"]:
        part["since"] = "long ago"
    assert Plan.from_json(told) == plan
    for part in told["root"]["parts"]:
        part.pop("models", None)
    assert Plan.from_json(told).name == plan.name
