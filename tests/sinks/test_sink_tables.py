"""CSV and Parquet: each report is a row, the table comes at the end, and unrelated files are not overwritten."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fake_run import FakeRun

from regatta.errors import UsageError
from regatta.journal.journal_file import Record
from regatta.journal.run_record import RunRecord
from regatta.sinks import export
from regatta.sinks.base import usable_sinks
from regatta.sinks.feed import send


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return FakeRun(fails=(3,), nans=(5,)).write(tmp_path / "runs").parent


def test_every_report_is_a_row_of_the_csv_file(folder: Path, made: RunRecord, tmp_path: Path) -> None:
    place = export(folder, f"csv:{tmp_path / 'out.csv'}")
    assert place == str(tmp_path / "out.csv")
    rows = rows_of(tmp_path / "out.csv")
    assert len(rows) == sum(len(config.reports) for config in made.configs.values())
    for row in rows:
        config = made.configs[row["config"]]
        assert row["run"] == "made"
        assert float(row["params.lr"]) == config.values["lr"]
        wanted = config.reports[int(row["epoch"])]["loss"]
        assert float(row["metrics.loss"]) == wanted or (math.isnan(wanted) and row["metrics.loss"] == "nan")
    assert list(rows[0])[:5] == ["run", "config", "epoch", "time", "params.hidden"]
    assert list(rows[0])[-2:] == ["metrics.loss", "metrics.accuracy"]


def test_the_leaderboard_file_is_beside_it_best_first(folder: Path, made: RunRecord, tmp_path: Path) -> None:
    export(folder, f"csv:{tmp_path / 'out.csv'}")
    rows = rows_of(tmp_path / "out-table.csv")
    assert [row["config"] for row in rows] == [config.id for config in made.leaderboard()]
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(1, 9)]
    best = made.leaderboard()[0].best("loss", "min")
    assert best is not None
    assert (int(rows[0]["best_epoch"]), float(rows[0]["metrics.loss"])) == best
    failed = next(row for row in rows if row["status"] == "failed")
    assert failed["error"] == "ValueError: bad luck"


def test_without_a_path_the_files_are_in_the_folder_of_the_run(folder: Path) -> None:
    export(folder, "csv")
    export(folder, "parquet")
    names = {path.name for path in folder.iterdir()}
    assert names == {"journal.jsonl", "results.csv", "results-table.csv", "results.parquet", "results-table.parquet"}


def test_columns_that_appear_late_are_added_to_the_file(tmp_path: Path) -> None:
    made = FakeRun(configs=3)
    for line in made.records:
        if line["event"] == "config" and line["values"]["id"] == 2:
            line["values"]['late, "odd"\nname'] = "two\nlines"
        if line["event"] == "report" and line["epoch"] == 2:
            line["metrics"]["second"] = 2.0
    export(made.write(tmp_path).parent, f"csv:{tmp_path / 'out.csv'}")
    rows = rows_of(tmp_path / "out.csv")
    assert len(rows) == 9
    assert {row["metrics.second"] for row in rows if row["epoch"] == "1"} == {""}
    assert {row["metrics.second"] for row in rows if row["epoch"] == "2"} == {"2.0"}
    assert {row['params.late, "odd"\nname'] for row in rows} == {"", "two\nlines"}


def test_rows_are_written_before_the_end(tmp_path: Path) -> None:
    made = FakeRun()
    seen = 0

    def lines() -> list[Record]:
        nonlocal seen
        for line in made.records:
            yield line
            if line["event"] == "report":
                seen += 1
                assert len(rows_of(tmp_path / "out.csv")) == seen

    send(lines(), *usable_sinks(f"csv:{tmp_path / 'out.csv'}"), tmp_path)
    assert seen == 24


def test_parquet_has_the_same_rows_with_types(folder: Path, tmp_path: Path) -> None:
    export(folder, f"csv:{tmp_path / 'out.csv'}")
    export(folder, f"parquet:{tmp_path / 'out.parquet'}")
    for name in ("out", "out-table"):
        texts, typed = rows_of(tmp_path / f"{name}.csv"), pq.read_table(tmp_path / f"{name}.parquet").to_pylist()
        assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in typed] == texts
    reports = pq.read_schema(tmp_path / "out.parquet")
    assert [str(reports.field(n).type) for n in ("epoch", "params.lr", "metrics.loss")] == ["int64", "double", "double"]


def test_a_column_of_mixed_values_is_text(tmp_path: Path) -> None:
    made = FakeRun(configs=4)
    mixed = iter([1, "two", None, 2**70])
    for line in made.records:
        if line["event"] == "config":
            line["values"] |= {"mixed": next(mixed), "wide": 2**70, "number": line["values"]["id"] or 0.5}
    export(made.write(tmp_path).parent, f"parquet:{tmp_path / 'out.parquet'}")
    table = pq.read_table(tmp_path / "out-table.parquet")
    assert set(table["params.mixed"].to_pylist()) == {"1", "two", None, str(2**70)}
    assert set(table["params.wide"].to_pylist()) == {str(2**70)}
    assert set(table["params.number"].to_pylist()) == {0.5, 1.0, 2.0, 3.0}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_unrelated_file_is_not_overwritten(kind: str, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / f"precious.{kind}"
    path.write_text("name,value\nprecious,1\n")
    with pytest.raises(UsageError, match="not overwritten"):
        export(folder, f"{kind}:{path}")
    assert path.read_text() == "name,value\nprecious,1\n"
    with pytest.raises(UsageError, match="is a folder"):
        export(folder, f"{kind}:{tmp_path}")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_exporting_a_run_again_replaces_its_files(kind: str, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / f"out.{kind}"
    export(folder, f"{kind}:{path}")
    before = path.read_bytes()
    export(folder, f"{kind}:{path}")
    assert path.read_bytes() == before
