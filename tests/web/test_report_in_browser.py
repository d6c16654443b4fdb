"""The report in a browser: what is drawn, what pointer and keys do. Needs Chromium; left out where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import BROWSER, probed
from fake_run import FakeRun
from searched import Searched

from regatta import search
from regatta.journal.run_record import RunRecord
from regatta.run import Run
from regatta.web.report_page import page

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
EVIL = "</script><img src=x onerror=\"errors.push('in')\"><script>errors.push('in')</script>"

PROBE = Path(__file__).with_name("report_probe.js").read_text()


def look(record: RunRecord, folder: Path, width: int = 1280) -> dict[str, Any]:
    found = probed(page(Run(Path("made"), record)), PROBE, folder, width)
    assert found["errors"] == []
    assert found["images"] == 0
    return found


@pytest.fixture(scope="module")
def halving(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    space = {"lr": search.loguniform(1e-4, 1e-1), "batch_size": [32, 64], "dropout": search.uniform(0, 0.5)}
    return look(Searched(search.hyperband(space, eta=3), epochs=9).record(), tmp_path_factory.mktemp("halving"))


def test_every_configuration_is_in_every_chart(halving: dict[str, Any]) -> None:
    assert len(halving["ids"]) == halving["curves"] == halving["lines"] == 15
    assert halving["bars"] == 16  # and the frame of the one that is lit
    assert len(halving["rungs"]) == 3
    assert halving["kin"] == 0


def test_the_best_is_named_first(halving: dict[str, Any]) -> None:
    assert halving["ids"][0] in halving["best"]
    assert "loss" in halving["best"]
    assert all(halving["ids"][0] in label for label in halving["labels"] if label.startswith("Learning"))


def test_charts_have_text_descriptions(halving: dict[str, Any]) -> None:
    assert [label.split()[0] for label in halving["labels"]] == ["Learning", "Parallel", "Budget"]
    assert len(halving["shares"]) == 3
    assert sum(halving["shares"]) == pytest.approx(100, abs=2)
    assert "15 configurations" in halving["method"]


def test_columns_sort_in_both_directions(halving: dict[str, Any]) -> None:
    assert halving["sorted"] == sorted(halving["sorted"])
    assert halving["direction"] == "ascending"
    assert halving["reversed"] == halving["sorted"][::-1]


def test_hovering_names_the_configuration(halving: dict[str, Any]) -> None:
    assert not halving["hovered"]["hidden"]
    assert halving["hovered"]["lit"] == [halving["ids"][0]]
    assert halving["ids"][0] in halving["hovered"]["tip"]
    assert "dropout" in halving["hovered"]["tip"]
    assert halving["left"] == {"hidden": True, "lit": []}


def test_brushing_keeps_configurations_that_pass_all_brushes(halving: dict[str, Any]) -> None:
    brushed = halving["brushed"]
    assert 0 < brushed["rows"] < 15
    assert brushed["out"] == 15 - brushed["rows"]
    assert brushed["said"] == f"{brushed['rows']} of 15 pass"
    assert "kept from 70% to 100%" in brushed["label"]
    assert min(brushed["lr"]) > 1e-3  # the upper part of a logarithmic axis
    assert halving["unbrushed"] == {"rows": 15, "out": 0}


def test_a_row_stays_highlighted_and_metrics_can_be_chosen(halving: dict[str, Any]) -> None:
    assert halving["pinned"] == [[halving["ids"][1]], "true"]
    assert halving["other"] == "accuracy after each epoch"


def test_parents_are_connected_with_their_children(tmp_path: Path) -> None:
    space = {"lr": search.loguniform(1e-4, 1e-1), "batch_size": [32, 64]}
    rules = {"lr": search.factor(0.8, 1.25)}
    record = Searched(search.pbt(space, population=6, every=3, mutate=rules), epochs=9).record()
    found = look(record, tmp_path)
    assert found["kin"] == sum(config.parent is not None for config in record.configs.values()) == 6
    assert "Too few configurations" in found["method"]


def test_failures_nan_and_hostile_names_on_a_phone(made: RunRecord, tmp_path: Path) -> None:
    made.name = made.header["name"] = made.header["metric"] = EVIL
    for number, config in enumerate(made.configs.values()):
        config.values[EVIL] = EVIL + str(number % 3)
        config.reports = {epoch: {EVIL: metrics["loss"], **metrics} for epoch, metrics in config.reports.items()}
    made.notes.append(("warning", EVIL))
    found = look(made, tmp_path, width=500)
    assert found["end"] == 8
    assert EVIL in found["best"]
    assert found["wide"] <= 500


def test_one_configuration_and_a_run_that_has_just_begun(tmp_path: Path) -> None:
    found = look(FakeRun(configs=1).record(), tmp_path)
    assert (found["curves"], found["lines"], found["bars"]) == (1, 0, 2)
    begun = RunRecord()
    for line in FakeRun().records[:12]:
        begun.apply(line)
    found = look(begun, tmp_path)
    assert found["end"] == 8
    assert "No configuration has a finite loss yet" in found["best"]
