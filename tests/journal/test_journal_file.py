"""The journal: appended, durable, and readable after any crash."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from regatta.errors import CorruptError
from regatta.journal.journal_file import Journal, read_journal


def written(path: Path, *events: str) -> bytes:
    journal = Journal(path)
    for number, event in enumerate(events):
        journal.append(event, number=number)
    journal.close()
    return path.read_bytes()


def test_records_come_back_in_order(tmp_path: Path) -> None:
    written(tmp_path / "j", "run", "note", "end")
    records = list(read_journal(tmp_path / "j"))
    assert [record["event"] for record in records] == ["run", "note", "end"]
    assert [record["number"] for record in records] == [0, 1, 2]
    assert records == sorted(records, key=lambda record: record["time"])


def test_append_returns_what_is_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    made = journal.append("note", text="Ä \n \u2028", value=0.1 + 0.2, nothing=None)
    assert list(read_journal(tmp_path / "j")) == [made]  # at once, before it is closed
    journal.close()


@pytest.mark.parametrize("cut", range(1, 40))
def test_an_incomplete_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    whole = written(tmp_path / "j", "run", "note")
    (tmp_path / "j").write_bytes(whole[:-cut])
    assert [record["event"] for record in read_journal(tmp_path / "j")] == ["run"]


def test_an_empty_journal_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"")
    assert list(read_journal(tmp_path / "j")) == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"{", "Line 2 is not JSON"),
        (b'{"event": "no', "Line 2 is not JSON"),
        (b"\xff\xfe", "Line 2 is not JSON"),
        (b"\0\0\0\0", "Line 2 is not JSON"),
        (b"", "Line 2 is not JSON"),
        (b"[1]", "Line 2 is not a record with an event"),
        (b'{"time": 1}', "Line 2 is not a record with an event"),
    ],
)
def test_a_damaged_line_in_the_middle_is_refused(tmp_path: Path, line: bytes, text: str) -> None:
    first, last = written(tmp_path / "j", "run", "end").splitlines()
    (tmp_path / "j").write_bytes(b"\n".join([first, line, last, b""]))
    with pytest.raises(CorruptError, match=text) as caught:
        list(read_journal(tmp_path / "j"))
    assert str(tmp_path / "j") in str(caught.value)


def test_callbacks_come_when_their_record_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []  # the size of the file at each fsync
    real = os.fsync

    def fsync(file: int) -> None:
        real(file)
        synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    journal = Journal(tmp_path / "j")
    seen: list[tuple[int, int]] = []
    for number in range(50):
        journal.append("note", lambda number=number: seen.append((number, max(synced[1:]))), number=number)
    journal.close()
    assert [number for number, _ in seen] == list(range(50))
    ends = [0]
    for line in (tmp_path / "j").read_bytes().splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    assert all(size >= ends[number + 1] for number, size in seen)


def test_many_lines_share_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    calls: list[int] = []

    def fsync(file: int) -> None:
        calls.append(file)
        if len(calls) == 2:  # the first one is the folder's
            held.wait(10)

    monkeypatch.setattr(os, "fsync", fsync)
    journal = Journal(tmp_path / "j")
    journal.append("run")
    while len(calls) < 2:
        pass
    for _ in range(100):
        journal.append("note")
    held.set()
    journal.close()
    assert len(calls) == 3


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")

    def write(writer: int) -> None:
        for number in range(200):
            journal.append("note", writer=writer, number=number, text="x" * (number * 7 % 300))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    records = list(read_journal(tmp_path / "j"))
    for writer in range(5):
        assert [r["number"] for r in records if r["writer"] == writer] == list(range(200))


def test_appending_to_an_older_journal_keeps_it(tmp_path: Path) -> None:
    written(tmp_path / "j", "run")
    written(tmp_path / "j", "end")
    assert [record["event"] for record in read_journal(tmp_path / "j")] == ["run", "end"]


def test_a_line_survives_the_death_of_the_process(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from regatta.journal.journal_file import Journal;"
        f"journal = Journal(pathlib.Path({str(tmp_path / 'j')!r})); journal.append('run'); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert [record["event"] for record in read_journal(tmp_path / "j")] == ["run"]


@pytest.mark.parametrize("breaks", ["fsync", "callback"])
def test_a_disk_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str) -> None:
    """Nothing may count on records that are not durable: the next append, or closing, says so."""

    def broken(*arguments: Any) -> None:
        raise OSError(5, "Input/output error")

    journal = Journal(tmp_path / "j")
    if breaks == "fsync":
        monkeypatch.setattr(os, "fsync", broken)
    called: list[bool] = []
    journal.append("run", broken if breaks == "callback" else lambda: called.append(True))
    journal._thread.join(10)
    with pytest.raises(OSError, match="Input/output error"):
        journal.append("note")
    with pytest.raises(OSError, match="Input/output error"):
        journal.close()
    assert called == []


def test_records_are_plain_json_lines(tmp_path: Path) -> None:
    for line in written(tmp_path / "j", "run", "note").splitlines():
        assert json.loads(line)["event"] in ("run", "note")


def test_settle_waits_for_all_callbacks(tmp_path: Path) -> None:
    called: list[int] = []
    with Journal(tmp_path / "j") as journal:
        for number in range(20):
            journal.append("note", lambda number=number: called.append(number), number=number)  # type: ignore[misc]
        journal.settle()
        assert called == list(range(20))
        journal.settle()  # with nothing to wait for


def test_settle_raises_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    journal.append("note")
    with pytest.raises(OSError, match="No space left"):
        journal.settle()


def test_half_a_line_is_removed(tmp_path: Path) -> None:
    """The journal's file may grow by a few bytes only; then there is room again."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("run", name="a")
    before, room = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, room[1]))
        with pytest.raises(OSError, match="File too large"):
            journal.append("note", text="x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
        signal.signal(signal.SIGXFSZ, before)
    journal.append("end", status="failed")
    journal.close()
    assert [line["event"] for line in read_journal(path)] == ["run", "end"]
