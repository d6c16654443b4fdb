"""The page of a search: the run's own numbers, safe, small, and honest about what it leaves out."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fake_run import FakeRun
from searched import Searched
from test_gantt_page import Elements, data_of, run_of

from regatta import search
from regatta.cli.main import main
from regatta.journal.run_record import RunRecord
from regatta.web.report_page import page, page_data

SPACE = {"lr": search.loguniform(1e-4, 1e-1), "batch_size": [32, 64, 128], "dropout": search.uniform(0, 0.5)}
EVIL = "</script><img src=x onerror=alert(1)><!-- {{script}} {{data}}"


@pytest.fixture(scope="module")
def halving() -> RunRecord:
    return Searched(search.hyperband(SPACE, eta=3), epochs=27).record()


@pytest.fixture(scope="module")
def population() -> RunRecord:
    rules = {"lr": search.factor(0.8, 1.25), "dropout": search.resample()}
    return Searched(search.pbt(SPACE, population=8, every=3, mutate=rules), epochs=12).record()


def test_the_best_comes_first_with_its_values(made: RunRecord) -> None:
    data = data_of(page(run_of(made)))
    best = made.leaderboard()[0]
    assert data["configs"][0]["id"] == best.id
    assert data["configs"][0]["best"] == pytest.approx(list(best.best("loss", "min") or ()))
    shown = dict(zip([axis["name"] for axis in data["axes"]], data["configs"][0]["values"], strict=True))
    assert shown | data["shared"] == best.values
    assert data["run"]["status"] == "done"


def test_curves_have_every_epoch_of_every_metric(made: RunRecord) -> None:
    data = page_data(run_of(made))
    assert data["metrics"] == ["loss", "accuracy"]
    for config, (epochs, values) in zip(made.leaderboard(), data["curves"]["loss"], strict=True):
        assert epochs == []
        assert len(values) == len(config.reports)
    assert None in [value for _, values in data_of(page(run_of(made)))["curves"]["loss"] for value in values]


def test_hostile_names_are_escaped(made: RunRecord) -> None:
    made.name = made.header["name"] = EVIL
    for number, config in enumerate(made.configs.values()):
        config.values[EVIL] = EVIL + str(number % 2)
        config.reports = {epoch: {**metrics, EVIL: 1.0} for epoch, metrics in config.reports.items()}
    made.notes.append(("warning", EVIL))
    text = page(run_of(made))
    assert text.count("<script") == 2
    assert "<img" not in text
    data = data_of(text)
    assert data["run"]["name"] == EVIL
    assert EVIL in [axis["name"] for axis in data["axes"]]
    assert EVIL in data["metrics"]
    assert "<img src=x onerror=alert(1)>" in Elements(text).title  # as text


def test_half_a_surrogate_pair_does_not_break_the_file(made: RunRecord, tmp_path: Path) -> None:
    next(iter(made.configs.values())).values["odd"] = "a\ud800b"
    (tmp_path / "page.html").write_text(page(run_of(made)))
    assert (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_loads_nothing_from_elsewhere(made: RunRecord) -> None:
    text = page(run_of(made))
    elements = Elements(text)
    assert not [attrs for _, attrs in elements.tags if {"src", "href"} & set(attrs)]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    policy = next(a for tag, a in elements.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in (policy["content"] or "")
    assert "prefers-color-scheme: dark" in text
    assert "{{" not in text.replace(elements.scripts[1], "")


def test_elements_that_the_script_looks_up_exist(made: RunRecord) -> None:
    elements = Elements(page(run_of(made)))
    there = {attrs["id"] for _, attrs in elements.tags if "id" in attrs}
    asked = set(re.findall(r'\$\("(\w[\w-]*)"\)', elements.scripts[1]))
    assert len(asked) > 20
    assert asked <= there


def test_axes_of_values_in_equal_ratios_are_logarithmic(halving: RunRecord) -> None:
    axes = {axis["name"]: axis for axis in page_data(run_of(halving))["axes"]}
    assert {name: axis["kind"] for name, axis in axes.items()} == {
        "lr": "log",
        "batch_size": "log",
        "dropout": "linear",
    }
    assert axes["batch_size"]["values"] == (32.0, 64.0, 128.0)


def test_mixed_values_give_an_axis_of_words(made: RunRecord) -> None:
    first, second, *rest = made.configs.values()
    first.values["mixed"], second.values["mixed"] = True, "relu"
    for config in rest[:-1]:
        config.values["mixed"] = None
    data = page_data(run_of(made))
    axis = next(axis for axis in data["axes"] if axis["name"] == "mixed")
    assert (axis["kind"], axis["words"]) == ("words", ("None", "True", "relu"))
    number = [axis["name"] for axis in data["axes"]].index("mixed")
    assert [config["id"] for config in data["configs"] if config["has"] and not config["has"][number]] == [rest[-1].id]


def test_rungs_match_the_brackets_of_hyperband(halving: RunRecord) -> None:
    brackets = search.hyperband_brackets(R=27, eta=3)
    ended: dict[int, int] = {}
    for bracket in brackets:
        for rung, after in zip(bracket, [*bracket[1:], None], strict=True):
            ended[rung.epochs] = ended.get(rung.epochs, 0) + rung.size - (after.size if after else 0)
    assert dict(page_data(run_of(halving))["rungs"]) == ended


def test_curves_of_children_begin_at_their_parents_epoch(population: RunRecord) -> None:
    configs = page_data(run_of(population))["configs"]
    children = [config for config in configs if config["parent"] is not None]
    assert len(children) == 3 * 4
    for child in children:
        parent = configs[child["parent"]]
        assert parent["born"] < child["born"] <= parent["born"] + parent["epoch"]
    assert max(config["born"] + config["epoch"] for config in configs) == 12
    assert "member" not in [axis["name"] for axis in page_data(run_of(population))["axes"]]


def test_the_parts_of_each_workers_time_add_up(made: RunRecord) -> None:
    time = page_data(run_of(made))["time"]
    used = made.resources()
    assert time["workers"] == ["w0", "w1"]
    assert [sum(row) for row in time["seconds"]] == pytest.approx([used.wall] * 2, rel=1e-4)
    sums = dict(zip(time["parts"], (sum(column) for column in zip(*time["seconds"], strict=True)), strict=True))
    assert sums["hop"] == pytest.approx(used.hop, rel=1e-4)
    assert sums["idle"] == pytest.approx(used.idle, abs=1e-3)


def test_the_parts_of_a_pack_member_take_no_longer_than_its_unit(made: RunRecord) -> None:
    """It loads the data of all members in more than its share of the time."""
    made.units = [replace(unit, load_seconds=5.0, hop_seconds=1.0) for unit in made.units]
    time = page_data(run_of(made))["time"]
    assert [sum(row) for row in time["seconds"]] == pytest.approx([made.resources().wall] * 2, rel=1e-4)


def test_absence_is_no_part_of_a_workers_time(made: RunRecord) -> None:
    start = min(unit.start for unit in made.units)
    made.units = [unit for unit in made.units if unit.worker != "w1" or unit.start > start + 0.5]
    made.presence["w1"] = [(start + 0.5, math.inf, 1)]
    time = page_data(run_of(made))["time"]
    wall = made.resources().wall
    assert [sum(row) for row in time["seconds"]] == pytest.approx([wall, wall - 0.5], rel=1e-4)


def test_a_page_of_a_thousand_configurations_stays_small(tmp_path: Path) -> None:
    record = FakeRun(configs=1000, partitions=1, epochs=1, workers=1, pilots=False).record()
    for number, config in enumerate(record.configs.values()):
        for epoch in range(1, 82):
            loss, accuracy = 1 / (epoch + number % 97) + (81 - epoch) * 1e-9, 1 - 1 / epoch
            config.reports[epoch] = {"loss": loss, "accuracy": accuracy, "train_loss": loss / 3}
    (tmp_path / "page.html").write_text(page(run_of(record)))
    assert (tmp_path / "page.html").stat().st_size < 3_000_000
    data = data_of((tmp_path / "page.html").read_text())
    assert len(data["configs"]) == 1000
    for config, (epochs, _) in zip(data["configs"], data["curves"]["loss"], strict=True):
        assert {1, 81, config["best"][0]} <= set(epochs)


def test_the_worst_of_too_many_configurations_are_left_out(monkeypatch: pytest.MonkeyPatch, made: RunRecord) -> None:
    monkeypatch.setattr("regatta.web.report_page.MAX_CONFIGS", 5)
    data = page_data(run_of(made))
    assert [config["id"] for config in data["configs"]] == [config.id for config in made.leaderboard()[:5]]
    assert data["run"]["configs"] == 8


def test_a_run_that_has_just_begun_has_a_page() -> None:
    record = RunRecord()
    for line in FakeRun().records[:12]:
        record.apply(line)
    data = data_of(page(run_of(record)))
    assert data["run"]["status"] == "running"
    assert [config["best"] for config in data["configs"]] == [None] * 8


def test_show_writes_the_page_and_exports_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FakeRun().write(tmp_path / "runs")
    out, table = tmp_path / "out.html", tmp_path / "out.csv"
    words = ["show", "made", "--repo", str(tmp_path), "--report", str(out), "--export", f"csv:{table}"]
    assert main(words) == 0
    assert data_of(out.read_text())["run"]["name"] == "made"
    assert len(table.read_text().splitlines()) == 25
    assert [f"Wrote {out}", f"Wrote {table}"] == capsys.readouterr().err.splitlines()
    assert main(["show", "made", "--repo", str(tmp_path), "--export", "cvs"]) == 2
    assert "Did you mean csv" in capsys.readouterr().err


def test_the_embedded_data_is_json(made: RunRecord) -> None:
    assert json.loads(json.dumps(page_data(run_of(made))))["version"] == 1
