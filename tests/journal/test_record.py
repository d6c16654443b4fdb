"""The fold of a journal: the same object for a run that goes on, that ended, or that was cut off anywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun
from recipes import eval_fn, loss_fn, model_fn, small_data

from regatta import Cluster, Run, Sweep, open_run, search
from regatta.errors import CorruptError
from regatta.journal.record import ConfigRecord, RunRecord


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


def test_reading_gives_what_was_followed_live(run: Run) -> None:
    read = RunRecord.read(run.folder / "journal.jsonl")
    live = run.record
    assert read.units == live.units or str(read.units) == str(live.units)  # NaN differs from itself
    assert str(read.configs) == str(live.configs)
    assert (read.status, read.notes, read.workers) == (live.status, live.notes, live.workers)
    assert open_run(run.name, run.folder.parents[1]).record.resources() == live.resources()


def test_nothing_runs_in_the_end(run: Run) -> None:
    for config in run.record.configs.values():
        assert config.running == {}
    for worker in run.record.workers.values():
        assert worker.running is None


def test_records_of_later_versions_are_passed_over(journal: list[dict[str, Any]]) -> None:
    record = RunRecord()
    for line in journal:
        record.apply({**line, "new_field": 1})
        record.apply({"event": "invented_later", "time": line["time"], "config": "nobody"})
    assert record.status == "done"


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


def test_a_worker_that_joins_for_a_while_is_idle_only_while_it_is_there() -> None:
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


def test_the_longest_way_is_that_of_one_model_and_ends_with_it(journal: list[dict[str, Any]]) -> None:
    seen = []
    for record, _ in prefixes(journal):
        going = [config for config in record.configs.values() if config.status == "training" and config.units]
        way = record.longest_way() if record.header else 0.0
        slowest = max((unit.seconds for config in going for unit in config.units), default=0.0)
        assert 0 <= way <= 8 * slowest + 1e-9
        seen.append(way)
    assert max(seen) > 0
    assert seen[-1] == 0
