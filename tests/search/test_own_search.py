"""The example of a search of one's own: it keeps the contract, it trains, and the documentation shows that class."""

from __future__ import annotations

import importlib.util
import re
import runpy
from collections.abc import Iterator
from typing import Any

import pytest
from locations import ROOT

import regatta
from regatta.search import Goal, Search
from regatta.testing.search import SearchContract, run_to_end

EXAMPLE = ROOT / "examples" / "own_search.py"
PAGE = ROOT / "docs" / "searches.md"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The example's names; its data set is written to a folder of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("own_search"))
        yield runpy.run_path(str(EXAMPLE))


class TestClimb(SearchContract):
    @pytest.fixture
    def search(self, example: dict[str, Any]) -> Search:
        climb: Search = example["Climb"](first=3, total=8)
        return climb


def test_the_example_improves_its_metric(example: dict[str, Any]) -> None:
    run = run_to_end(example["Climb"](4, 40), Goal("loss", "min", 2, 0), lambda v, e: abs(v["lr"] - 0.02))  # type: ignore[arg-type,operator]
    assert min(abs(float(values["lr"]) - 0.02) for values in run.values.values()) < 1e-3  # type: ignore[arg-type]
    assert len(run.values) == 40


def test_the_example_trains_in_a_sweep(
    example: dict[str, Any], one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = example["sweep"]
    monkeypatch.setattr(sweep, "cluster", regatta.Cluster.inline())
    run = sweep.launch(progress=False)
    rows = run.table()
    assert [row["status"] for row in rows] == ["done"] * 8
    assert run.best["config"] == min(rows, key=lambda row: row["loss"])["config"]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_page_shows_the_example() -> None:
    shown = next(block for block in blocks("python") if "class Climb" in block)
    assert shown[shown.index("class Climb") :].strip() in EXAMPLE.read_text()


def test_the_pages_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    optional = [block for block in blocks("py") if "optuna" in block and importlib.util.find_spec("optuna")]
    for block in [*blocks("python"), *optional]:
        exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out.strip().splitlines()
    assert len(printed) == 3
    assert all(f"    {line}\n" in PAGE.read_text() for line in printed)
    begun = names["halving"].start(Goal("loss", "min", 9, 0))
    assert len(begun) == 16
