"""Plans in words, as pairs of files: what is to be trained (JSON), and what people are told about it (text).

A new text is made by hand from `python tests/plan/test_explain.py NAME`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from regatta.plan.estimates import KnownTimes
from regatta.plan.explain import Explanation, Workload, explain, what_if
from regatta.plan.simulate import spread

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "plan"


def workload(name: str) -> tuple[Workload, dict]:
    given = json.loads((FIXTURES / f"{name}.json").read_text())
    models = given["models"]
    train = {(m, j): v["train"] for m, v in models.items() for j in range(given["partitions"])}
    evals = {(m, j): v["eval"] for m, v in models.items() for j in range(given["evals"])}
    epochs = {m: v["epochs"] for m, v in models.items()}
    sizes = {m: v["bytes"] for m, v in models.items()}
    return Workload(epochs, given["partitions"], given["evals"], KnownTimes(train, evals), sizes), given


def explained(name: str) -> Explanation:
    work, given = workload(name)
    holdings = spread(given["partitions"], given["workers"], given["evals"])
    return explain(work, holdings, given.get("rule", "auto"))


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.json")))
def test_the_plan_in_words(name: str) -> None:
    assert explained(name).text() + "\n" == (FIXTURES / f"{name}.txt").read_text()


def test_the_plan_in_json_has_the_same_numbers() -> None:
    found = explained("alike").to_json()
    assert json.loads(json.dumps(found)) == found
    assert (found["models"], found["train_units"], found["eval_units"]) == (3, 36, 18)
    assert found["makespan"] == pytest.approx(found["bound"]) == pytest.approx(9.9)
    assert found["hop_bytes"] == found["hops"] * 40_000_000


def test_what_if_there_were_more_workers() -> None:
    work, _ = workload("alike")
    rows = what_if(work, [1, 2, 4])
    assert [row["workers"] for row in rows] == [1, 2, 4]
    assert rows[0]["speedup"] == pytest.approx(1.0)
    assert rows[0]["makespan"] > rows[1]["makespan"] > rows[2]["makespan"]
    assert all(row["makespan"] >= row["bound"] * (1 - 1e-9) for row in rows)
    assert all(0 < row["utilisation"] <= 1 + 1e-9 for row in rows)


if __name__ == "__main__":
    print(explained(sys.argv[1]).text())
