"""The page that shows which unit ran where: complete, safe, and with the run's numbers."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun

from regatta.journal.run_record import RunRecord
from regatta.run import Run
from regatta.web.gantt_page import page, page_data
from regatta.web.notebook_table import table_html
from regatta.web.page_base import embed


class Elements(HTMLParser):
    """The elements of a page and the text of its scripts, as a browser would take it apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.title = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside == "title":
            self.title += data


def run_of(record: RunRecord) -> Run:
    return Run(Path(record.name), record)


def data_of(text: str) -> Any:
    elements = Elements(text)
    assert len(elements.scripts) == 2
    return json.loads(elements.scripts[0])


def test_the_data_parses_back(made: RunRecord) -> None:
    data = data_of(page(run_of(made)))
    assert data == json.loads(embed(page_data(run_of(made))))
    assert data["run"]["name"] == "made"
    assert [config["id"] for config in data["configs"]] == [config.id for config in made.leaderboard()]


def test_every_unit_is_on_the_page(made: RunRecord) -> None:
    units = data_of(page(run_of(made)))["units"]
    lengths = {len(column) for name, column in units.items() if name != "metrics"}
    assert lengths == {len(made.units)}
    assert sorted(set(units["kind"])) == ["eval", "pilot", "train"]
    busy = sum(end - start for start, end in zip(units["start"], units["end"], strict=True))
    assert busy == pytest.approx(sum(unit.seconds for unit in made.units), abs=1e-3)
    assert min(units["start"]) == 0
    assert units["start"] == sorted(units["start"])


def test_units_name_their_configuration_and_worker(made: RunRecord) -> None:
    data = data_of(page(run_of(made)))
    units = data["units"]
    found = {
        (data["configs"][c]["id"], data["workers"][w], kind, epoch, partition)
        for c, w, kind, epoch, partition in zip(
            units["config"], units["worker"], units["kind"], units["epoch"], units["partition"], strict=True
        )
    }
    assert found == {(u.config, u.worker, u.kind, u.epoch, u.partition) for u in made.units}


def with_absence() -> RunRecord:
    """Worker w1 is absent in the first and the last quarter of the run."""
    record = FakeRun().record()
    start, end = min(unit.start for unit in record.units), max(unit.end for unit in record.units)
    begin, until = start + (end - start) / 4, end - (end - start) / 4
    record.units = [u for u in record.units if u.worker != "w1" or (u.start > begin and u.end < until)]
    record.presence["w1"] = [(begin, until, 1)]
    return record


def test_the_page_says_when_each_worker_was_present() -> None:
    data = data_of(page(run_of(with_absence())))
    (whole,), ((begin, until),) = data["present"]
    assert data["workers"] == ["w0", "w1"]
    assert whole == [0, pytest.approx(data["resources"]["wall"], abs=1e-5)]
    assert (begin, until) == (pytest.approx(whole[1] / 4, abs=1e-4), pytest.approx(3 * whole[1] / 4, abs=1e-4))
    assert sum(data["percentages"].values()) == 100


def test_every_unit_is_at_a_time_at_which_its_worker_is_present() -> None:
    """Also where the clock of a worker is ahead of the controller's."""
    record = with_absence()
    until = record.presence["w1"][0][1]
    late = next(number for number, unit in enumerate(record.units) if unit.worker == "w1")
    record.units[late] = replace(record.units[late], start=until - 0.01, end=until + 0.02)
    data = data_of(page(run_of(record)))
    units = data["units"]
    for worker, start, end in zip(units["worker"], units["start"], units["end"], strict=True):
        assert any(a - 1e-5 <= start and end <= b + 1e-5 for a, b in data["present"][worker])


def test_nan_and_failures_reach_the_page(made: RunRecord) -> None:
    configs = data_of(page(run_of(made)))["configs"]
    assert any(point[1] is None for config in configs for point in config["series"])
    assert [config["error"] for config in configs if config["status"] == "failed"] == ["ValueError: bad luck"]


def test_markup_in_a_run_cannot_escape_its_element() -> None:
    evil = "</script><script>alert(1)</script><!-- {{script}} {{data}}"
    record = FakeRun().record()
    record.name = record.header["name"] = evil
    config = next(iter(record.configs.values()))
    config.values["note"], config.error = evil, evil
    text = page(Run(Path("folder") / "x", record))
    data = data_of(text)
    assert data["run"]["name"] == evil
    assert [c["values"]["note"] for c in data["configs"] if c["id"] == config.id] == [evil]
    assert text.count("<script") == 2
    assert "alert(1)</script" not in text


def test_a_name_with_markup_is_text_in_the_title() -> None:
    record = FakeRun(name="a<b>&c").record()
    assert Elements(page(run_of(record))).title == "a<b>&c: what ran where"


def test_the_page_loads_nothing_from_elsewhere(made: RunRecord) -> None:
    text = page(run_of(made))
    elements = Elements(text)
    assert not [attrs for _, attrs in elements.tags if {"src", "href"} & set(attrs)]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    policy = next(a for tag, a in elements.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in (policy["content"] or "")
    assert "{{" not in text.replace(elements.scripts[1], "")


def test_elements_that_the_script_looks_up_exist(made: RunRecord) -> None:
    elements = Elements(page(run_of(made)))
    there = {attrs["id"] for _, attrs in elements.tags if "id" in attrs}
    asked = set(re.findall(r'\$\("(\w[\w-]*)"\)', elements.scripts[1]))
    assert asked and asked <= there


def test_a_run_that_has_just_begun_has_a_page() -> None:
    record = RunRecord()
    for line in FakeRun().records[:12]:
        record.apply(line)
    data = data_of(page(run_of(record)))
    assert data["run"]["status"] == "running"
    assert len(data["configs"]) == 8


def test_a_page_of_twenty_thousand_units_stays_small(tmp_path: Path) -> None:
    record = FakeRun(configs=40, partitions=8, epochs=56, workers=8, pilots=False).record()
    assert len(record.units) > 20_000
    begun = time.process_time()
    (tmp_path / "page.html").write_text(page(run_of(record)))
    assert time.process_time() - begun < 5
    assert (tmp_path / "page.html").stat().st_size < 3_000_000


def test_a_notebook_shows_the_leaderboard_as_text(made: RunRecord) -> None:
    config = made.leaderboard()[0]
    config.values["hidden"] = "<b>"
    shown = table_html("a&b", made)
    assert "a&amp;b" in shown
    assert "&lt;b&gt;" in shown
    assert config.id in shown
    assert "batch_size" not in shown
    assert "not started" in table_html("x", RunRecord())
