"""Rows, the lower bound and the Chrome trace of a run."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from fake_run import FakeRun

from regatta.journal.run_record import RunRecord, UnitRecord
from regatta.journal.trace import bound_from_trace, chrome_trace, efficiency, rows, worker_names


def record_of(*units: UnitRecord) -> RunRecord:
    return RunRecord("hand", units=list(units))


def unit(config: str, worker: str, start: float, end: float, **more: Any) -> UnitRecord:
    return UnitRecord(more.pop("kind", "train"), config, 1, more.pop("partition", 0), worker, start, end, **more)


def slices(trace: dict[str, Any], *categories: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] in categories]


def test_a_row_for_each_unit_with_exactly_the_documented_keys(made: RunRecord) -> None:
    found = rows(made)
    assert len(found) == len(made.units)
    keys = {"kind", "config", "epoch", "partition", "worker", "start", "end", "hop_bytes", "hop_seconds"}
    assert all(set(row) == keys for row in found)
    assert found[-1]["end"] == made.units[-1].end


def test_bound_is_the_busiest_worker_or_the_longest_model() -> None:
    busy = record_of(unit("a", "w0", 0, 2), unit("b", "w0", 2, 5), unit("a", "w1", 2, 3))
    assert bound_from_trace(busy) == 5  # w0
    long = record_of(unit("a", "w0", 0, 2), unit("a", "w1", 2, 6), unit("b", "w0", 2, 3))
    assert bound_from_trace(long) == 6  # a trains 6 seconds, no worker is busy for longer than 4


def test_evaluation_keeps_workers_busy_but_not_models() -> None:
    """A model's evaluation partitions can run at the same time, so they bound only the workers."""
    apart = record_of(*(unit("a", f"w{w}", 0, 2, kind="eval", partition=w) for w in range(3)))
    assert bound_from_trace(apart) == 2


def test_efficiency_compares_the_makespan_with_the_bound() -> None:
    found = efficiency(record_of(unit("a", "w0", 10, 14), unit("b", "w1", 15, 18)))
    assert (found.makespan, found.bound, found.ratio) == (8, 4, 2)
    assert found.utilisation == 1.0, "without records of workers, they were present only while they were busy"


def test_workers_are_not_expected_to_be_busy_while_they_are_absent() -> None:
    """One joins late, and a controller was dead for a minute."""
    record = record_of(unit("a", "w0", 0, 4), unit("b", "w1", 6, 8), unit("a", "w0", 68, 72))
    record.sessions = [(0.0, 8.0), (68.0, 72.0)]
    record.presence = {"w0": [(0.0, 8.0, 1), (68.0, 72.0, 1)], "w1": [(5.0, 8.0, 1)]}
    found = efficiency(record)
    assert (found.makespan, found.bound) == (12, 8)
    assert found.utilisation == pytest.approx(10 / 15)


def test_a_run_without_units_has_no_bound() -> None:
    found = efficiency(RunRecord("empty"))
    assert (found.makespan, found.bound, found.ratio, found.utilisation) == (0, 0, 1, 0)
    assert chrome_trace(RunRecord("empty"))["traceEvents"][0]["name"] == "process_name"


def test_chrome_trace_is_json_with_a_named_row_for_each_worker(made: RunRecord) -> None:
    trace = json.loads(json.dumps(chrome_trace(made), allow_nan=False))
    named = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert sorted(named.values()) == ["w0", "w1"]
    units = slices(trace, "train", "eval", "pilot")
    assert len(units) == len(made.units)
    assert {e["tid"] for e in units} == set(named)
    assert min(e["ts"] for e in units) == 0
    assert all(e["dur"] >= 0 and e["pid"] == 1 for e in units)


def test_slices_of_a_worker_nest(made: RunRecord) -> None:
    """Perfetto refuses slices of one row that overlap without one holding the other."""
    by_row = defaultdict(list)
    for event in slices(chrome_trace(made), "train", "eval", "pilot", "hop", "save"):
        by_row[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert by_row
    for spans in by_row.values():
        open_ends: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start + 1:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1  # a microsecond for rounding
            open_ends.append(end)


def test_arrows_join_units_of_one_model_on_different_workers() -> None:
    hops = record_of(unit("a", "w0", 0, 1), unit("a", "w1", 2, 3), unit("a", "w1", 3, 4), unit("b", "w0", 1, 2))
    arrows = [e for e in chrome_trace(hops)["traceEvents"] if e.get("cat") == "hop"]
    assert [(e["ph"], e["tid"]) for e in arrows] == [("s", 1), ("f", 2)]
    assert 0 < arrows[0]["ts"] < 1e6  # inside the unit that it leaves
    assert arrows[1]["ts"] == 2e6
    assert arrows[0]["id"] == arrows[1]["id"]


def test_a_trace_says_nan_where_json_cannot() -> None:
    trace = chrome_trace(FakeRun(nans=(0,)).record())
    said = [e["args"]["metrics"]["loss"] for e in slices(trace, "train")]
    assert "nan" in said
    json.dumps(trace, allow_nan=False)


def test_workers_are_in_the_order_of_their_numbers() -> None:
    run = record_of(unit("a", "w10", 0, 1), unit("a", "w2", 1, 2), unit("a", "w0", 2, 3))
    assert worker_names(run) == ["w0", "w2", "w10"]


def test_speeds_tell_slow_workers_from_slow_models() -> None:
    from regatta.journal.run_record import RunRecord, UnitRecord
    from regatta.journal.trace import speeds

    record = RunRecord()
    for config, slowness in (("light", 1.0), ("heavy", 30.0)):
        for worker, speed in (("w0", 1.0), ("w1", 3.0)):
            for partition, count in enumerate((100, 200)):
                end = slowness * count / speed
                unit = UnitRecord(
                    "train", config, 1, partition, worker, 0.0, end + 2.0, count, hop_seconds=1.5, save_seconds=0.5
                )
                record.units.append(unit)
    assert speeds(record) == {"w0": 0.5, "w1": 1.5}
    assert speeds(RunRecord()) == {}
