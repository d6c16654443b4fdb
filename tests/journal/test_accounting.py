"""Where time went: a worker is busy, idle or absent, and kinds of work and idle time add up to the time of workers."""

from __future__ import annotations

import itertools
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from regatta.journal.accounting import Resources, merged, percentages, presence, worker_accounts
from regatta.journal.run_record import RunRecord

PARTS = ("train", "eval", "pilot", "idle")


def run_of(*lines: dict[str, Any]) -> RunRecord:
    """A run of the configuration c, after these records."""
    header = {"event": "run", "name": "r", "metric": "loss", "mode": "min", "dataset": {"train": [], "eval": []}}
    record = RunRecord()
    config = {"event": "config", "config": "c", "values": {}, "epochs": 99}
    for line in ({**header, "time": 0.0}, {**config, "time": 0.0}, *sorted(lines, key=lambda line: line["time"])):
        record.apply(line)
    return record


def unit(worker: str, start: float, end: float, kind: str = "train", **more: Any) -> dict[str, Any]:
    place = {"kind": kind, "config": "c", "epoch": int(start * 100), "partition": 0, "worker": worker}
    return {"event": "unit", "time": end, "start": start, "end": end, **place, **more}


def pilot(worker: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    return {"event": "pilot", "time": end, "config": "c", "worker": worker, "start": start, "end": end, **more}


def worker(name: str, time: float, state: str = "up", **more: Any) -> dict[str, Any]:
    return {"event": "worker", "time": time, "worker": name, "state": state, **more}


def spans_of(record: RunRecord, name: str) -> list[tuple[float, float, int]]:
    return [(span.start, span.end, span.width) for span in presence(record)[name]]


def test_a_worker_that_died_and_one_that_joined_are_absent_not_idle() -> None:
    record = run_of(
        worker("w0", 0.0), worker("w1", 0.0), worker("w1", 10.0, "down"), worker("w1", 60.0), worker("w2", 90.0),
        unit("w0", 0.0, 100.0), unit("w1", 1.0, 9.0), unit("w1", 61.0, 99.0), unit("w2", 91.0, 99.0, "eval"),
    )  # fmt: skip
    assert spans_of(record, "w1") == [(0.0, 10.0, 1), (60.0, 100.0, 1)]
    assert spans_of(record, "w2") == [(90.0, 100.0, 1)]
    accounts = worker_accounts(record)
    assert {name: account.idle for name, account in accounts.items()} == {"w0": 0.0, "w1": 4.0, "w2": 2.0}
    assert {name: account.present for name, account in accounts.items()} == {"w0": 100.0, "w1": 50.0, "w2": 10.0}
    assert accounts["w2"].eval == 8.0


def test_nothing_is_present_between_two_controllers() -> None:
    record = run_of(
        worker("w0", 0.0), unit("w0", 0.0, 10.0), unit("w0", 10.0, 12.0),
        {"event": "resume", "time": 500.0}, worker("w0", 505.0), unit("w0", 506.0, 520.0),
    )  # fmt: skip
    assert spans_of(record, "w0") == [(0.0, 12.0, 1), (505.0, 520.0, 1)]
    used = record.resources()
    assert (used.wall, used.workers, used.idle) == (32.0, 27.0, 1.0)


def test_a_worker_that_runs_no_unit_is_idle() -> None:
    record = run_of(worker("w0", 0.0), worker("w1", 0.0), unit("w0", 0.0, 10.0))
    assert worker_accounts(record)["w1"].idle == 10.0


def test_a_worker_that_left_before_the_first_unit_was_never_present() -> None:
    record = run_of(worker("w0", 0.0), worker("w0", 1.0, "down"), worker("w1", 2.0), unit("w1", 2.0, 10.0))
    assert spans_of(record, "w0") == []
    assert worker_accounts(record)["w0"].present == 0.0


def test_workers_are_present_while_they_profile_models() -> None:
    record = run_of(pilot("w0", 1.0, 4.0), pilot("w1", 3.0, 5.0), worker("w0", 6.0), worker("w1", 6.0),
                    unit("w0", 6.0, 10.0), unit("w1", 8.0, 10.0))  # fmt: skip
    accounts = worker_accounts(record)
    assert [accounts[name].present for name in ("w0", "w1")] == [9.0, 7.0]
    assert [accounts[name].idle for name in ("w0", "w1")] == [2.0, 3.0]


def test_a_worker_that_dies_while_it_profiles_models_is_gone() -> None:
    record = run_of(pilot("w1", 1.0, 3.0), worker("w1", 4.0, "down"), pilot("w0", 1.0, 9.0), worker("w0", 10.0),
                    unit("w0", 10.0, 20.0))  # fmt: skip
    assert spans_of(record, "w1") == [(1.0, 4.0, 1)]
    assert worker_accounts(record)["w1"].idle == 1.0


def test_the_seconds_of_a_group_are_those_of_its_workers() -> None:
    """Also where it profiled models before it was declared to be up: these records have no width."""
    record = run_of(pilot("g0", 0.0, 2.0), worker("g0", 3.0, width=2), unit("g0", 3.0, 8.0, width=2),
                    worker("g0", 9.0, "down"), worker("g0", 9.0, width=3), unit("g0", 9.0, 10.0, width=3))  # fmt: skip
    account = worker_accounts(record)["g0"]
    assert (account.pilot, account.train, account.idle) == (4.0, 13.0, 4.0)
    assert account.present == 2 * 9.0 + 3 * 1.0


def test_units_at_the_same_time_keep_a_worker_busy_once() -> None:
    """One fetches its state while the other ends: no time is idle twice."""
    record = run_of(worker("w0", 0.0), unit("w0", 0.0, 6.0), unit("w0", 5.0, 10.0, "eval"), unit("w0", 12.0, 20.0))
    assert worker_accounts(record)["w0"].idle == 2.0


def test_accounts_since_a_moment_leave_out_what_was_before() -> None:
    record = run_of(pilot("w0", 0.0, 4.0), worker("w0", 5.0), unit("w0", 5.0, 10.0), worker("w1", 5.0),
                    unit("w1", 7.0, 9.0))  # fmt: skip
    accounts = worker_accounts(record, since=6.0)
    assert (accounts["w0"].pilot, accounts["w0"].train, accounts["w0"].idle) == (0.0, 4.0, 0.0)
    assert (accounts["w1"].train, accounts["w1"].idle) == (2.0, 2.0)


def test_a_run_without_units_has_no_accounts() -> None:
    assert worker_accounts(run_of(worker("w0", 0.0))) == {} == percentages(run_of().resources())


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12))
def test_merged_spans_are_disjoint_and_cover_the_same_time(starts: list[tuple[int, int]]) -> None:
    spans = [(start, start + length) for start, length in starts]
    found = merged(spans)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))
    covered = {second for start, end in spans for second in range(start, end)}
    assert {second for start, end in found for second in range(int(start), int(end))} == covered


def used_of(**parts: float) -> Resources:
    rest = dict.fromkeys(Resources.__dataclass_fields__, 0)
    return Resources(**{**rest, **parts, "workers": sum(parts.values())})


@given(st.fixed_dictionaries({part: st.floats(0.0, 1e6) for part in PARTS}))
def test_percentages_add_up_to_a_hundred(parts: dict[str, float]) -> None:
    found = percentages(used_of(**parts))
    whole = sum(parts.values())
    assert (sum(found.values()) == 100) if whole > 0 else (found == {})
    assert all(math.isclose(share, 100 * parts[name] / whole, abs_tol=1.0) for name, share in found.items())


def test_the_largest_remainders_are_rounded_up() -> None:
    thirds = percentages(used_of(train=1.0, eval=1.0, pilot=0.0, idle=1.0))
    assert sorted(thirds.values()) == [0, 33, 33, 34]
    found = percentages(used_of(train=40.7, eval=30.6, pilot=28.5, idle=0.2))
    assert found == {"train": 41, "eval": 31, "pilot": 28, "idle": 0}
