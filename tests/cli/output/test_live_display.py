"""The live display: on a terminal, elsewhere, and with records in any order that a record can take."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
from fake_run import FakeRun
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from regatta.cli.output import live_frame
from regatta.cli.output.live_display import DisplayState, LineDisplay, UnitRate, open_display
from regatta.journal.run_record import RunRecord


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def play(listener: Any, records: list[dict[str, Any]]) -> RunRecord:
    run = RunRecord()
    for line in records:
        run.apply(line)
        listener(run, line)
    return run


def lines_of(made: FakeRun, clock: Any = lambda: 0.0) -> list[str]:
    out = io.StringIO()
    play(LineDisplay(Console(file=out, width=200), clock), made.records)
    return out.getvalue().splitlines()


def frame(run: RunRecord, width: int = 100, height: int = 30, now: float = 0.0) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height)
    console.print(live_frame.frame(run, UnitRate(), now or run.now, width, height))
    return out.getvalue().splitlines()


def midway(made: FakeRun, part: float = 0.5) -> RunRecord:
    run = RunRecord()
    for line in made.records[: int(len(made.records) * part)]:
        run.apply(line)
    return run


class Closed(io.StringIO):
    """A pipe whose reader has seen enough."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_continues_when_its_output_is_closed(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Closed, "isatty", lambda self: terminal)
    with open_display(Closed()) as listener:
        assert play(listener, FakeRun(fails=(3,)).records).status == "done"


def test_without_a_terminal_start_failures_and_end_are_printed() -> None:
    said = lines_of(FakeRun(fails=(3,)))
    assert said[:2] == ["made: starting", "made: 8 configurations, 4 partitions, 3 epochs on 2 workers"]
    (failed,) = (line for line in said if line.startswith("failed: "))
    config = failed.split()[1].rstrip(":")
    assert failed.endswith(f"ValueError: bad luck; see: regatta show made {config}")
    assert said[-1].startswith("made: done, 88 units in ")  # those of training, as `show` counts them
    assert said[-1].endswith("1 configuration failed")


def test_without_a_terminal_reports_are_printed_seconds_apart() -> None:
    made = FakeRun()
    still = [line for line in lines_of(made, clock=lambda: 0.0) if "/96 units, " in line]
    assert len(still) == 1
    ticks = iter(range(0, 10**6, 10))
    moving = [line for line in lines_of(made, clock=lambda: float(next(ticks))) if "/96 units, " in line]
    assert len(moving) == 24  # eight configurations, three epochs
    assert "loss" in moving[0]


def test_notes_and_lost_workers_are_printed() -> None:
    made = FakeRun()
    made.records[-1:-1] = [
        {"event": "note", "time": 1.0, "level": "warning", "text": "loss is nan", "config": "x"},
        {"event": "worker", "time": 1.0, "worker": "w1", "state": "down", "reason": "killed by signal 9"},
    ]
    said = lines_of(made)
    assert "warning: loss is nan" in said
    assert "worker w1 is gone: killed by signal 9" in said


def test_a_pipe_gets_no_control_characters() -> None:
    out = io.StringIO()
    with open_display(out) as listener:
        play(listener, FakeRun(fails=(1,)).records)
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


def test_a_terminal_shows_a_display_and_keeps_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")
    out = Terminal()
    with open_display(out) as listener:
        play(listener, FakeRun(fails=(3,)).records)
    text = out.getvalue()
    assert "trains" in text or "idle" in text
    assert "failed: " in text
    assert "made: done" in text
    assert "\x1b[?25h" in text  # the cursor is back


def test_a_dumb_terminal_shows_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    with open_display(out) as listener:
        play(listener, FakeRun().records)
    assert "\x1b[?25l" not in out.getvalue()


def test_the_display_shows_workers_models_and_progress() -> None:
    run = midway(FakeRun())
    text = "\n".join(frame(run))
    done, wanted = run.progress()
    assert f"{done}/{wanted} units" in text
    for worker in run.workers.values():
        assert worker.running is None or worker.running[1] in text
    assert all(config in text for config in run.configs)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 10), (200, 60), (40, 5)])
def test_a_hundred_configurations_fit_any_terminal(width: int, height: int) -> None:
    run = midway(FakeRun(configs=100, workers=12, epochs=2))
    lines = frame(run, width, height)
    assert len(lines) <= height - 1
    assert f"{run.progress()[0]}/{run.progress()[1]} units" in lines[0]
    assert lines[0].rstrip().endswith(" left")
    assert all(line[0] != " " for line in lines[:3]), "each worker has one line"
    if height >= 10:
        shown = sum(any(line.startswith(config) for line in lines) for config in run.configs)
        assert f"and {100 - shown} more: " in lines[-1]


def test_the_best_and_the_running_ones_are_shown() -> None:
    run = midway(FakeRun(configs=100, workers=4, epochs=2))
    chosen = live_frame.choose_configs(run, limit=10)
    assert len(chosen) == 10
    assert {c.id for c in run.configs.values() if c.running} <= {c.id for c in chosen}
    assert run.leaderboard()[0] in chosen


def test_the_display_shows_something_before_the_first_record() -> None:
    console = Console(file=io.StringIO())
    state = DisplayState()
    assert "starting" in str(state.show(console))
    state.on_record(RunRecord(), {"event": "note", "time": 0.0, "level": "info", "text": "early"})
    assert "starting" in str(state.show(console))


def units_of(config: str, *ends: float, seconds: float = 1.0, partitions: int = 2) -> list[dict[str, Any]]:
    return [
        {"event": "unit", "kind": "train", "config": config, "epoch": number // partitions + 1,
         "partition": number % partitions, "worker": "w0", "start": end - seconds, "end": end, "time": end}
        for number, end in enumerate(ends)
    ]  # fmt: skip


def run_of(*lines: dict[str, Any], epochs: int = 10) -> tuple[RunRecord, UnitRate]:
    """A run of two configurations with two partitions of 100 rows, after these records; two workers are up."""
    parts = [{"path": f"p{number}", "rows": 100} for number in range(2)]
    header = {"event": "run", "name": "r", "metric": "loss", "mode": "min", "dataset": {"train": parts, "eval": parts}}
    made = [header, *({"event": "worker", "worker": name, "state": "up"} for name in ("w0", "w1"))]
    made += [{"event": "config", "config": name, "values": {"name": name}, "epochs": epochs} for name in "ab"]
    record, rate = RunRecord(), UnitRate()
    for line in [*({"time": 0.0, **line} for line in made), *sorted(lines, key=lambda line: line["time"])]:
        record.apply(line)
        rate.on_record(line)
    return record, rate


def test_the_remaining_time_follows_the_throughput_and_counts_down() -> None:
    record, rate = run_of()
    assert rate.rate is None
    assert rate.left(record, 0.0) is None
    record, rate = run_of(*units_of("a", 1.0, 2.0, 3.0, 4.0), *units_of("b", 1.0, 2.0, 3.0, 4.0))
    assert rate.rate == pytest.approx(7 / 3)
    # 32 units of a second are left, and 7 were done in 3 seconds; but each model takes 16 more seconds.
    assert rate.left(record, 4.0) == pytest.approx(16.0)
    assert rate.left(record, 7.0) == pytest.approx(13.0)
    assert rate.left(record, 50.0) == 0.0


def test_the_remaining_time_of_workers_that_wait_is_longer() -> None:
    """A unit of a second is done every four seconds."""
    record, rate = run_of(*units_of("a", 4.0, 8.0), *units_of("b", 12.0, 16.0))
    assert rate.left(record, 16.0) == pytest.approx(4 * 36.0)


def test_before_two_units_are_known_the_remaining_time_follows_from_the_profiles() -> None:
    profile = {"event": "pilot", "time": 0.5, "config": "a", "worker": "w0", "start": 0.0, "end": 0.5, "build": "",
               "train_seconds_per_row": 0.01, "eval_seconds_per_row": 0.0, "fixed_seconds": 0.0}  # fmt: skip
    record, rate = run_of(profile)
    assert rate.left(record, 0.5) == pytest.approx(20.0), "40 units of a second on two workers"


def test_a_display_may_join_a_run_that_has_begun() -> None:
    records = FakeRun().records
    run = RunRecord()
    for line in records[:60]:
        run.apply(line)
    state = DisplayState()
    for line in records[60:]:
        run.apply(line)
        state.on_record(run, line)
    assert state.record is not run
    assert state.record == run


def test_drawing_while_the_run_goes_on_is_safe() -> None:
    """The refreshing thread and the runner's thread never touch the same object."""
    state = DisplayState()
    console = Console(file=io.StringIO(), width=100, height=40)
    over = threading.Event()
    wrong: list[BaseException] = []

    def refresh() -> None:
        try:
            while not over.is_set():
                console.print(state.show(console))
        except RuntimeError as error:
            wrong.append(error)

    thread = threading.Thread(target=refresh)
    thread.start()
    play(state.on_record, FakeRun(configs=40, epochs=2).records)
    over.set()
    thread.join()
    assert not wrong


MIXED = FakeRun(configs=4, partitions=2, epochs=2, fails=(1,), nans=(2,)).records


@settings(max_examples=40, deadline=None)
@given(st.permutations(MIXED), st.integers(0, len(MIXED)))
def test_records_in_any_order_can_be_displayed(order: list[dict[str, Any]], header: int) -> None:
    """The display accepts every order of records that a run record accepts; run and configurations come first."""
    first = [line for line in MIXED if line["event"] in ("run", "config")]
    later = [line for line in order if line["event"] not in ("run", "config")]
    later.insert(min(header, len(later)), {"event": "note", "time": 0.0, "level": "info", "text": "between"})
    run, state = RunRecord(), DisplayState()
    out = io.StringIO()
    console = Console(file=out, width=80, height=20)
    lines = LineDisplay(console)
    for number, line in enumerate([*first, *later]):
        try:
            run.apply(line)
        except KeyError:
            continue  # a unit of a worker that is not up: the runner could not have written it either
        state.on_record(run, line)
        lines(run, line)
        if number % 6 == 0:
            console.print(state.show(console))
    assert state.record == run
