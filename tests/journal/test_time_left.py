"""How much training is left: by profiles, by the units that were done, and by the kind of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from locations import FIXTURES

from regatta.journal.run_record import RunRecord
from regatta.journal.time_left import TrainingEstimates, TrainingLeft

JOURNALS = sorted((FIXTURES / "v0" / "journals").glob("*.jsonl"))


def header(**configs: dict[str, Any]) -> list[dict[str, Any]]:
    """A run on one worker with two partitions of 100 rows; every configuration is wanted for five epochs."""
    parts = [{"path": f"p{number}", "rows": 100} for number in range(2)]
    run = {"event": "run", "name": "r", "metric": "loss", "mode": "min", "dataset": {"train": parts, "eval": parts}}
    wanted = [{"event": "config", "config": name, "values": values, "epochs": 5} for name, values in configs.items()]
    return [{"time": 0.0, **line} for line in (run, {"event": "worker", "worker": "w", "state": "up"}, *wanted)]


def unit(config: str, number: int, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    place = {"kind": "train", "config": config, "epoch": number // 2 + 1, "partition": number % 2, "worker": "w"}
    return {"event": "unit", "time": 9.0, "start": 9.0 - seconds, "end": 9.0, **place, **more}


def profile(config: str, seconds: float, **more: Any) -> dict[str, Any]:
    """Units of this configuration take that many seconds."""
    costs = {"train_seconds_per_row": seconds / 100, "eval_seconds_per_row": 0.0, "fixed_seconds": 0.0}
    span = {"worker": "w", "start": 0.0, "end": 1.0}
    return {"event": "pilot", "time": 1.0, "config": config, "build": "b", **span, **costs, **more}


def left(*lines: dict[str, Any]) -> TrainingLeft | None:
    record = RunRecord()
    for line in lines:
        record.apply(line)
    return TrainingEstimates().left(record)


def test_nothing_is_known_before_anything_was_measured() -> None:
    assert left(*header(a={}, b={})) is None


def test_a_profile_tells_what_is_left() -> None:
    found = left(*header(a={"x": 1}, b={"x": 2}), profile("a", 1.0), profile("b", 3.0))
    assert found is not None
    assert (found.total, found.longest) == (pytest.approx(40.0), pytest.approx(30.0))
    cached = left(*header(a={"x": 1}), profile("a", 1.0, cached=True))
    assert cached is not None and cached.total == pytest.approx(10.0)


def test_a_configuration_that_was_not_measured_is_estimated_by_its_kind() -> None:
    """Not by the mean of all, and not as if nothing was left of it."""
    made = header(a={"width": 8, "lr": 0.1}, b={"width": 512, "lr": 0.1}, c={"width": 512, "lr": 0.2})
    found = left(*made, profile("a", 1.0), profile("b", 50.0))
    assert found is not None
    assert (found.total, found.longest) == (pytest.approx(10.0 + 500.0 + 500.0), pytest.approx(500.0))


def test_units_that_were_done_are_not_left_and_correct_the_profile() -> None:
    done = [unit("a", number, seconds=3.0) for number in range(4)]
    found = left(*header(a={}), profile("a", 1.0), *done)
    assert found is not None and 12.0 < found.total <= 6 * 3.0


def test_one_slow_unit_does_not_stand_for_all_that_follow() -> None:
    """A resumed run has a slow first unit where a model is compiled or a disk is cold."""
    done = [unit("a", number) for number in range(7)]
    found = left(*header(a={}), profile("a", 1.0), *done, unit("a", 7, seconds=40.0))
    assert found is not None and found.total < 2 * 5.0


def test_nothing_is_left_of_what_failed_stopped_or_is_done() -> None:
    lines = [*header(a={}, b={}, c={}), profile("a", 1.0), profile("b", 1.0), profile("c", 1.0)]
    failed = {"event": "failed", "time": 9.0, "config": "b", "kind": "train", "error": "ValueError"}
    stopped = {"event": "stop", "time": 9.0, "config": "c"}
    done = [unit("a", number) for number in range(10)]
    assert left(*lines, failed, stopped, *done) == TrainingLeft(0.0, 0.0)


def test_the_units_of_a_pack_run_one_after_another() -> None:
    """Each member has its share of the time of a unit."""
    done = [unit(name, 0, pack="p", seconds=1.0) for name in "ab"]
    found = left(*header(a={}, b={}, c={}), *done, unit("c", 0))
    assert found is not None
    assert (found.total, found.longest) == (pytest.approx(27.0), pytest.approx(18.0))
    alone = left(*header(a={}, b={}, c={}), *done, unit("c", 0), unit("a", 1))
    assert alone is not None and alone.longest == pytest.approx(9.0)


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_following_a_journal_gives_what_reading_it_gives(path: Path) -> None:
    """Estimates that follow a run use every profile and unit once; at the end nothing is left."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    record, following = RunRecord(), TrainingEstimates()
    checked = 0
    for number, line in enumerate(lines):
        record.apply(line)
        found = following.left(record)
        if number % max(1, len(lines) // 8) == 0:
            fresh = TrainingEstimates().left(record)
            assert (found is None) == (fresh is None)
            if found is not None and fresh is not None:
                checked += 1
                assert (found.total, found.longest) == (pytest.approx(fresh.total), pytest.approx(fresh.longest))
                assert 0 <= found.longest <= found.total * (1 + 1e-9)
    assert checked > 3
    if record.status == "done":
        assert found is not None and found.total == 0.0
