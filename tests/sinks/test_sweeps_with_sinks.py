"""Sinks switched on with one argument of a real sweep."""

from __future__ import annotations

import csv
import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
from recipes import eval_fn, loss_fn, model_fn, small_data

from regatta import Cluster, Dataset, Sweep, open_run
from regatta.errors import MissingExtraError, UsageError
from regatta.journal.journal_file import Record
from regatta.journal.run_record import RunRecord
from regatta.search import grid


class Broken:
    """Fails with the first report; workers import it from here, so it can be packed."""

    place = ""

    def check(self) -> None:
        pass

    def open(self, folder: Path) -> Broken:
        return self

    def write(self, record: RunRecord, line: Record) -> None:
        if line["event"] == "report":
            raise ConnectionError("the server went away")

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def sweep(data: Dataset, repo: Path, **options: Any) -> Sweep:
    space = grid(lr=[0.01, 0.1], batch_size=8)
    options = {"cluster": Cluster.inline(), "epochs": 2, "name": "small", "repo": repo, **options}
    return Sweep(data, space, model_fn, loss_fn=loss_fn, eval_fn=eval_fn, **options)


def test_one_argument_exports_all_reports(data: Dataset, tmp_path: Path) -> None:
    run = sweep(data, tmp_path, sinks=["csv", "tensorboard", f"parquet:{tmp_path / 'out.parquet'}"]).launch(
        progress=False
    )
    with (run.folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    reported = {
        (c.id, epoch): report["loss"] for c in run.record.configs.values() for epoch, report in c.reports.items()
    }
    assert {(row["config"], int(row["epoch"])): float(row["metrics.loss"]) for row in rows} == reported
    assert len(reported) == 4
    assert (tmp_path / "out.parquet").is_file()
    assert {path.parent.name for path in run.folder.rglob("events*")} == {"tensorboard", *run.record.configs}
    assert run.record.notes == []
    again = open_run("small", repo=tmp_path).export(f"csv:{tmp_path / 'again.csv'}")
    assert Path(again).read_bytes() == (run.folder / "results.csv").read_bytes()


def test_a_broken_sink_gives_a_note_and_the_run_completes(data: Dataset, tmp_path: Path) -> None:
    run = sweep(data, tmp_path, sinks=[Broken(), "csv"]).launch(progress=False)
    assert run.record.status == "done"
    assert all(config.status == "done" for config in run.record.configs.values())
    read = open_run("small", repo=tmp_path).record
    assert [text for _, text in read.notes] == [text for _, text in run.record.notes]
    assert len(read.notes) == 1
    assert "broken failed with ConnectionError: the server went away" in read.notes[0][1]
    assert (run.folder / "results-table.csv").is_file()


def test_without_sinks_nothing_is_written(data: Dataset, tmp_path: Path) -> None:
    run = sweep(data, tmp_path).launch(progress=False)
    assert not [path for path in run.folder.iterdir() if path.name.startswith(("results", "tensorboard", "mlflow"))]


def test_wrong_sinks_fail_before_training(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="Did you mean parquet"):
        sweep(data, tmp_path, sinks=["parket"])
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "mlflow" else found(name, *more)
    )
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[mlflow\]'"):
        sweep(data, tmp_path, sinks="mlflow")
    assert not (tmp_path / "runs").exists()


def test_the_sinks_of_a_resumed_run_have_all_reports(data: Dataset, tmp_path: Path) -> None:
    space = grid(lr=[0.01, 0.1], batch_size=4, sleeps=0.01)
    options = {"loss_fn": loss_fn, "epochs": 4, "cluster": Cluster.inline(), "repo": tmp_path, "name": "small"}
    halted = Sweep(data, space, model_fn, sinks="csv", **options).launch(wait=False, progress=False)
    while not any(config.reports for config in halted.record.configs.values()):
        time.sleep(0.01)
    halted.halt()
    with pytest.raises(KeyboardInterrupt):
        halted.result()
    run = Sweep(data, space, model_fn, sinks="csv", **options).launch(progress=False)
    with (run.folder / "results.csv").open(newline="") as file:
        found = [(row["config"], int(row["epoch"])) for row in csv.DictReader(file)]
    assert len(found) == len(set(found)) == 8
    assert len(run.record.sessions) == 2
