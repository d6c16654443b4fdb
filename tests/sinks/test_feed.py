"""A sink beside a run receives all records; a slow or broken sink does not affect the run."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun

from regatta.errors import MissingExtraError, UsageError
from regatta.journal.journal_file import Journal, Record, read_journal
from regatta.journal.run_record import RunRecord
from regatta.sinks import csv, following, usable_sinks
from regatta.sinks.base import require_package


class Heard:
    """A sink that keeps what it hears; `gate` holds it up, `breaks_at` makes it fail there."""

    def __init__(self, breaks_at: str = "", gate: threading.Event | None = None) -> None:
        self.lines: list[Record] = []
        self.thread: threading.Thread | None = None
        self.closed = False
        self.place = "memory"
        self._breaks_at, self._gate = breaks_at, gate

    def check(self) -> None:
        pass

    def open(self, folder: Path) -> Heard:
        return self

    def write(self, record: RunRecord, line: Record) -> None:
        if self._gate is not None:
            self._gate.wait()
        if line["event"] == self._breaks_at:
            raise OSError("no such\nserver")
        assert line["event"] != "report" or line["epoch"] in record.configs[line["config"]].reports
        self.thread = threading.current_thread()
        self.lines.append(line)

    def close(self) -> None:
        self.closed = True


def play(folder: Path, records: list[Record], listeners: Any) -> RunRecord:
    """What a runner does with its records, without the training."""
    record = RunRecord()
    journal = Journal(folder / "journal.jsonl")
    for line in records:
        fields = {name: value for name, value in line.items() if name not in ("event", "time")}
        written = journal.append(line["event"], **fields)
        record.apply(written)
        for listener in listeners:
            listener(record, written)
    journal.close()
    return record


def test_every_sink_receives_the_whole_journal_on_another_thread(tmp_path: Path) -> None:
    sinks = [Heard(), Heard()]
    with following(sinks, tmp_path) as listeners:
        play(tmp_path, FakeRun().records, listeners)
    for sink in sinks:
        assert sink.lines == list(read_journal(tmp_path / "journal.jsonl"))
        assert sink.closed
        assert sink.thread is not threading.current_thread()
    assert sinks[0].thread is not sinks[1].thread


def test_a_slow_sink_does_not_delay_the_run(tmp_path: Path) -> None:
    gate = threading.Event()
    slow, quick = Heard(gate=gate), Heard()
    with following([slow, quick], tmp_path) as listeners:
        record = play(tmp_path, FakeRun().records, listeners)  # would never come back if it waited
        assert record.status == "done"
        assert slow.lines == []
        gate.set()
    assert len(slow.lines) == len(quick.lines) == len(FakeRun().records)


def test_a_sink_that_hangs_is_abandoned(tmp_path: Path) -> None:
    gate = threading.Event()
    stuck = Heard(gate=gate)
    with following([stuck], tmp_path, patience=0.05) as listeners:
        record = play(tmp_path, FakeRun().records, listeners)
    assert "the sink heard is still writing" in record.notes[-1][1]
    gate.set()


def test_a_sink_that_raises_is_switched_off_with_one_note(tmp_path: Path) -> None:
    broken, whole, notes = Heard(breaks_at="report"), Heard(), []
    home = tmp_path / "made"
    home.mkdir()
    with following([broken, whole], home, [lambda record, line: notes.append(line["text"])]) as listeners:
        play(home, FakeRun().records, listeners)
    assert not broken.closed
    assert len(whole.lines) == len(FakeRun().records)
    read = RunRecord.read(home / "journal.jsonl")
    assert read.status == "done"
    assert [level for level, _ in read.notes] == ["warning"]
    assert notes == [text for _, text in read.notes]
    assert "failed with OSError: no such; the run continues" in notes[0]
    assert "regatta show made --export" in notes[0]


def test_an_interrupted_run_still_reaches_the_sinks(tmp_path: Path) -> None:
    sink = Heard()
    with pytest.raises(KeyboardInterrupt), following([sink], tmp_path) as listeners:
        play(tmp_path, FakeRun().records[:20], listeners)
        raise KeyboardInterrupt
    assert len(sink.lines) == 20
    assert sink.closed


def test_a_run_that_never_began_writes_nothing(tmp_path: Path) -> None:
    sink = Heard()
    with following([sink], tmp_path):
        pass
    assert not sink.closed
    assert list(tmp_path.iterdir()) == []


def test_an_incomplete_line_is_not_read(tmp_path: Path) -> None:
    sink, records = Heard(), FakeRun().records
    path = tmp_path / "journal.jsonl"
    with following([sink], tmp_path) as (listener,), path.open("w") as file:
        for line in records[:3]:
            text = json.dumps(line)
            file.write(text[:10])
            file.flush()
            listener(RunRecord(), line)
            file.write(text[10:] + "\n")
            file.flush()
            listener(RunRecord(), line)
        file.write('{"event":"torn')
    assert sink.lines == records[:3]


def test_without_sinks_there_is_no_listener_and_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with following((), tmp_path) as listeners:
        assert listeners == ()
        assert threading.active_count() == before


def test_sinks_are_given_by_name_or_as_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = Heard()
    named = usable_sinks(["csv:a.csv", csv("b.csv"), own])
    assert [getattr(sink, "path", sink) for sink in named] == [tmp_path / "a.csv", tmp_path / "b.csv", own]
    assert usable_sinks("csv") == usable_sinks(csv()) == (csv(),)
    assert usable_sinks(None) == usable_sinks([]) == ()


def test_wrong_sinks_are_refused_early() -> None:
    with pytest.raises(UsageError, match="tensorboard"):
        usable_sinks(["tensorbord"])
    with pytest.raises(UsageError, match="which is not a sink"):
        usable_sinks([3])  # type: ignore[list-item]
    with pytest.raises(MissingExtraError, match=r"\.\[mlflow\]"):
        require_package("no_such_package_at_all", "mlflow", "The sink mlflow")
