"""The record of a run: the same object for a run that is going, that ended, or that was cut off anywhere."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun
from recipes import eval_fn, loss_fn, model_fn, small_data

import regatta
from regatta import Cluster, Run, Sweep, open_run, search
from regatta.errors import CorruptError, NewerVersionError
from regatta.journal import journal_file as journal_module
from regatta.journal import run_record as record_module
from regatta.journal.journal_file import EVENTS, Journal
from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.journal.trace import chrome_trace
from regatta.run import list_runs


@pytest.fixture(scope="module")
def run(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A real run with a failure and a NaN."""
    folder = tmp_path_factory.mktemp("run")
    common = {"batch_size": 5, "epoch_steps": 10}
    configs = [{**common, "lr": 0.1}, {**common, "fails": "nan"}, {**common, "fails": "epoch 2"}, dict(common)]
    return Sweep(
        small_data(folder / "data"), search.configs(configs), model_fn, loss_fn=loss_fn, eval_fn=eval_fn, epochs=2,
        cluster=Cluster.inline(2), repo=folder,
    ).launch(progress=False)  # fmt: skip


@pytest.fixture(scope="module")
def journal(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "journal.jsonl").read_text().splitlines()]


def prefixes(journal: list[dict[str, Any]]) -> Iterator[tuple[RunRecord, dict[str, Any]]]:
    record = RunRecord()
    for line in journal:
        record.apply(line)
        yield record, line


def test_every_prefix_can_be_looked_at(journal: list[dict[str, Any]]) -> None:
    """A run may be cut off after any line."""
    before = (0, 0)
    for record, line in prefixes(journal):
        done, wanted = record.progress()
        assert done <= wanted
        assert done >= before[0]
        before = done, wanted
        assert {config.id for config in record.leaderboard()} == set(record.configs)
        resources = record.resources()
        assert resources.wall >= 0
        assert resources.units == len(record.units)
        assert record.status == ("done" if line["event"] == "end" else "running")
        for config in record.configs.values():
            assert config.status in ("waiting", "training", "done", "failed")
            assert len(config.running) <= 2
        for worker in record.workers.values():
            if worker.running is not None:
                kind, config_name, epoch, partition = worker.running
                assert record.configs[config_name].running[worker.name] == (kind, epoch, partition)
    assert before[0] == sum(line["event"] == "unit" and line["kind"] == "train" for line in journal)


def test_cutting_the_file_anywhere_loses_only_what_came_after(run: Run, journal: Any, tmp_path: Path) -> None:
    whole = (run.folder / "journal.jsonl").read_bytes()
    path = tmp_path / "journal.jsonl"
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole), 997):
        path.write_bytes(whole[:cut])
        record = RunRecord.read(path)
        lines = journal[: whole[:cut].count(b"\n")]
        assert len(record.units) == sum(line["event"] in ("unit", "pilot") for line in lines)
    path.write_bytes(whole[: first - 1])
    with pytest.raises(CorruptError, match="no record of its run"):
        RunRecord.read(path)


def test_reading_a_journal_gives_the_live_record(run: Run) -> None:
    read = RunRecord.read(run.folder / "journal.jsonl")
    live = run.record
    assert read.units == live.units or str(read.units) == str(live.units)  # NaN differs from itself
    assert str(read.configs) == str(live.configs)
    assert (read.status, read.notes, read.workers) == (live.status, live.notes, live.workers)
    assert open_run(run.name, run.folder.parents[1]).record.resources() == live.resources()


def test_no_unit_runs_after_the_end(run: Run) -> None:
    for config in run.record.configs.values():
        assert config.running == {}
    for worker in run.record.workers.values():
        assert worker.running is None


def test_new_fields_are_ignored(journal: list[dict[str, Any]]) -> None:
    record = RunRecord()
    for line in journal:
        record.apply({**line, "new_field": 1})
    assert record.status == "done"


def test_an_unknown_kind_of_record_is_an_error_of_the_version(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "newer" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    line = json.dumps({"event": "invented_later", "time": 0.0, "config": "c"})
    path.write_text((run.folder / "journal.jsonl").read_text() + line + "\n")
    with pytest.raises(NewerVersionError, match="written by a newer version of Regatta") as caught:
        RunRecord.read(path)
    assert "'invented_later'" in str(caught.value) and "Upgrade Regatta" in str(caught.value)
    assert caught.value.place == str(path)
    (listed,) = list_runs(tmp_path)
    assert listed.status == "failed" and "newer version" in str(listed.error)


def documented_events() -> set[str]:
    rows = re.findall(r"^\| (\w+) +\|", str(journal_module.__doc__), flags=re.MULTILINE)
    return set(rows) - {"event"}


def test_writer_and_reader_know_the_same_kinds_of_records(tmp_path: Path) -> None:
    assert set(EVENTS) == set(record_module._HANDLERS) == documented_events()
    with Journal(tmp_path / "j") as journal, pytest.raises(ValueError, match="'invented' is not a kind"):
        journal.append("invented")


def test_every_kind_that_the_product_writes_is_registered() -> None:
    """Read from the source, so that a kind that no test run writes is found too."""
    package = Path(str(regatta.__file__)).parent
    calls = re.compile(r"(?:run_log\.write|self\._write|self\.write|journal\.append|PendingRecord)\(\s*\"(\w+)\"")
    written = {kind for path in package.rglob("*.py") for kind in calls.findall(path.read_text())}
    assert written == set(EVENTS)


@pytest.mark.parametrize("event", EVENTS)
def test_a_record_without_a_handler_is_refused(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: handler for name, handler in record_module._HANDLERS.items() if name != event}
    monkeypatch.setattr(record_module, "_HANDLERS", others)
    with pytest.raises(NewerVersionError):
        RunRecord().apply({"event": event, "time": 0.0})


@pytest.mark.parametrize("event", ["pilot", "packs", "groups"])
def test_time_spent_on_profiling_is_accounted_for(event: str) -> None:
    made = FakeRun(configs=2)
    config = made.records[-2]["config"]
    end = {**made.records[-1]}
    before = made.record().resources()
    width = {"width": 2} if event == "groups" else {}
    profile = {"event": event, "time": end["time"], "config": config, "worker": "w0", **width}
    measured = {**profile, "start": end["time"] - 3.0, "end": end["time"] - 1.0}
    made.records[-1:] = [measured, {**profile, "cached": True}, end]
    record = made.record()
    after = record.resources()
    assert after.units == before.units + 1, "what an earlier run measured took no time in this one"
    assert after.pilot == pytest.approx(before.pilot + 2.0 * width.get("width", 1))
    assert after.workers >= before.workers
    assert [e["name"] for e in chrome_trace(record)["traceEvents"] if e.get("cat") == "pilot"][-1] == f"{config} pilot"
    assert not any(unit.kind == "pilot" for unit in record.configs[config].units)


def test_resources_add_up(run: Run) -> None:
    resources = run.record.resources()
    busy = resources.train + resources.eval + resources.pilot
    assert resources.workers == pytest.approx(busy + resources.idle)
    assert resources.wall < resources.workers <= 2 * resources.wall
    assert 0 < resources.hop < resources.train + resources.eval
    assert 0 < resources.save < resources.train
    assert resources.load > 0


def test_a_lost_worker_runs_nothing() -> None:
    record = RunRecord()
    made = FakeRun(configs=2).records
    start = next(i for i, line in enumerate(made) if line["event"] == "start")
    for line in made[: start + 1]:
        record.apply(line)
    worker, config = made[start]["worker"], made[start]["config"]
    assert record.workers[worker].running is not None
    record.apply({"event": "worker", "time": 0.0, "worker": worker, "state": "down", "reason": "was killed"})
    assert record.workers[worker].running is None
    assert not record.workers[worker].up
    assert record.configs[config].running == {}
    record.apply({"event": "worker", "time": 0.0, "worker": worker, "state": "up", "pid": 7})
    assert record.workers[worker].up
    assert record.workers[worker].info == {"pid": 7}


def config_with(*values: float) -> ConfigRecord:
    return ConfigRecord("abc", {}, 3, reports={epoch: {"loss": value} for epoch, value in enumerate(values, 1)})


@pytest.mark.parametrize(
    ("values", "mode", "best"),
    [
        ((3.0, 1.0, 2.0), "min", (2, 1.0)),
        ((3.0, 1.0, 2.0), "max", (1, 3.0)),
        ((1.0, 1.0), "min", (1, 1.0)),
        ((math.nan, 2.0), "min", (2, 2.0)),
        ((math.nan, 2.0), "max", (2, 2.0)),
        ((math.nan,), "min", None),
        ((math.inf, 2.0), "min", (2, 2.0)),
        ((-math.inf, 2.0), "min", (2, 2.0)),
        ((math.inf, 2.0), "max", (2, 2.0)),
        ((math.inf,), "min", None),
        ((), "min", None),
    ],
)
def test_the_best_epoch_is_the_best_finite_one(values: Any, mode: str, best: Any) -> None:
    """The best, not the last; the earliest of equals; never what is not a number."""
    assert config_with(*values).best("loss", mode) == best


def test_a_metric_that_was_not_reported_is_nan() -> None:
    config = config_with(1.0, 2.0)
    config.reports[2] = {"accuracy": 0.5}
    assert config.series("loss")[0] == 1.0
    assert math.isnan(config.series("loss")[1])
    assert config.best("loss", "min") == (1, 1.0)


def test_a_worker_is_idle_only_while_it_is_up() -> None:
    record = RunRecord()
    lines = [
        {
            "event": "run",
            "time": 0.0,
            "name": "r",
            "dataset": {"train": [], "eval": []},
            "metric": "loss",
            "mode": "min",
        },
        {"event": "config", "time": 0.0, "config": "c", "values": {}, "epochs": 9},
        {"event": "worker", "time": 0.0, "worker": "w0", "state": "up"},
        {"event": "worker", "time": 40.0, "worker": "w1", "state": "up"},
        {"event": "worker", "time": 45.0, "worker": "w1", "state": "down", "reason": "left"},
    ]
    for number, (worker, start, end) in enumerate([("w0", 0.0, 50.0), ("w1", 41.0, 44.0), ("w0", 50.0, 100.0)]):
        unit = {"kind": "train", "config": "c", "epoch": number, "partition": 0, "worker": worker}
        lines.append({"event": "unit", "time": end, "start": start, "end": end, **unit})
    for line in sorted(lines, key=lambda line: line["time"]):
        record.apply(line)
    used = record.resources()
    assert (used.wall, used.workers, used.idle) == (100.0, 105.0, 2.0)
