"""CSV and Parquet: a file with a row for each report, and a final table with a row for each configuration.

`out.csv` has the reports in their order, `out-table.csv` the configurations, best first. Columns have names as in
MLflow: `params.lr`, `metrics.loss`. The CSV file of reports grows with the run. The other files are written at its end:
the columns of a Parquet file are fixed with its first row, and the table changes with each report.
"""

from __future__ import annotations

import csv as csv_files
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from regatta.durable import replacing
from regatta.errors import UsageError
from regatta.journal.journal_file import Record
from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.paths import RESULTS_CSV, RESULTS_PARQUET
from regatta.sinks.base import require_package

Row = dict[str, Any]
FIRST = ("run", "config")  # the first columns of every file that this sink writes
MARK = b"regatta"  # in the metadata of every Parquet file that this sink writes


def csv(path: str | Path | None = None) -> Csv:
    """Reports as CSV, at `path` or as `results.csv` in the run's folder, and the final table beside it."""
    return Csv(_absolute(path))


def parquet(path: str | Path | None = None) -> Parquet:
    """Reports as Parquet, at `path` or as `results.parquet` in the run's folder, and the final table beside it."""
    return Parquet(_absolute(path))


@dataclass(frozen=True)
class Csv:
    path: Path | None = None

    def check(self) -> None:
        _check_file(self.path, _is_our_csv)

    def open(self, folder: Path) -> _CsvWriter:
        return _CsvWriter(self.path or folder / RESULTS_CSV)


@dataclass(frozen=True)
class Parquet:
    path: Path | None = None

    def check(self) -> None:
        require_package("pyarrow", "parquet", "The sink parquet")
        _check_file(self.path, _is_our_parquet)

    def open(self, folder: Path) -> _ParquetWriter:
        return _ParquetWriter(self.path or folder / RESULTS_PARQUET)


class _TableWriter(ABC):
    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self._path = path
        self._record: RunRecord | None = None
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, record: RunRecord, line: Record) -> None:
        self._record = record
        if line["event"] == "report":
            self._add(_report_row(record, line))

    def close(self) -> None:
        self._finish()
        if self._record is not None and self._record.header:
            table = self._path.with_name(f"{self._path.stem}-table{self._path.suffix}")
            ranked = enumerate(self._record.leaderboard(), 1)
            self._write_whole([_table_row(self._record, rank, config) for rank, config in ranked], table)

    @abstractmethod
    def _add(self, row: Row) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...

    @abstractmethod
    def _write_whole(self, rows: Sequence[Row], path: Path) -> None: ...


class _CsvWriter(_TableWriter):
    """Writes each row at once; a row with a new column rewrites the file first."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._columns: list[str] = []
        self._file: TextIO = path.open("w", encoding="utf-8", newline="")

    def _add(self, row: Row) -> None:
        if any(name not in self._columns for name in row):
            self._widen([*self._columns, *(name for name in row if name not in self._columns)])
        csv_files.writer(self._file).writerow([_cell(row.get(name)) for name in self._columns])
        self._file.flush()

    def _widen(self, names: list[str]) -> None:
        self._file.close()
        with self._path.open(encoding="utf-8", newline="") as file:
            rows: list[Row] = list(csv_files.DictReader(file))
        self._columns = _in_order(names)
        _write_csv(rows, self._columns, self._path)
        self._file = self._path.open("a", encoding="utf-8", newline="")

    def _finish(self) -> None:
        self._file.close()

    def _write_whole(self, rows: Sequence[Row], path: Path) -> None:
        _write_csv(rows, _columns(rows), path)


class _ParquetWriter(_TableWriter):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._rows: list[Row] = []

    def _add(self, row: Row) -> None:
        self._rows.append(row)

    def _finish(self) -> None:
        self._write_whole(self._rows, self._path)

    def _write_whole(self, rows: Sequence[Row], path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = _columns(rows) or list(FIRST)
        table = pa.table({name: pa.array(_one_type([row.get(name) for row in rows])) for name in names})
        with replacing(path, durable=False, durable_name=False) as written:
            pq.write_table(table.replace_schema_metadata({MARK: b"1"}), written)


def _report_row(record: RunRecord, line: Record) -> Row:
    config = record.configs[line["config"]]
    return {
        "run": record.name,
        "config": config.id,
        "epoch": line["epoch"],
        "time": line["time"],
        **_values(config),
        **_metrics(config, line["epoch"]),
    }


def _table_row(record: RunRecord, rank: int, config: ConfigRecord) -> Row:
    """A configuration with its metrics at its best epoch."""
    best = config.best(record.metric, record.mode)
    return {
        "run": record.name,
        "config": config.id,
        "rank": rank,
        "status": config.status,
        "epoch": config.epoch,
        "best_epoch": best[0] if best else None,
        "seconds": sum(unit.seconds for unit in config.units),
        "parent": config.parent,
        "error": config.error,
        **_values(config),
        **(_metrics(config, best[0]) if best else {}),
    }


def _values(config: ConfigRecord) -> Row:
    return {f"params.{name}": value for name, value in config.values.items()}


def _metrics(config: ConfigRecord, epoch: int) -> Row:
    return {f"metrics.{name}": float(value) for name, value in config.reports[epoch].items()}


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return _in_order(list(dict.fromkeys(name for row in rows for name in row)))


def _in_order(names: list[str]) -> list[str]:
    """Names of columns: those that identify the row, then parameters, then metrics."""
    return sorted(names, key=lambda name: (name.startswith("metrics."), name.startswith("params.")))


def _write_csv(rows: Sequence[Row], columns: Sequence[str], path: Path) -> None:
    with (
        replacing(path, durable=False, durable_name=False) as written,
        written.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv_files.writer(file)
        writer.writerow(columns)
        writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)


def _cell(value: Any) -> Any:
    return "" if value is None else value


def _one_type(values: list[Any]) -> list[Any]:
    """The values of a column with one type: numbers if all are numbers, otherwise text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return [None if value is None else float(value) for value in values]
    huge = kinds == {int} and any(abs(value) >= 2**63 for value in values if value is not None)
    if len(kinds) <= 1 and not huge:
        return values
    return [None if value is None else str(value) for value in values]


def _absolute(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path).expanduser().absolute()


def _check_file(path: Path | None, ours: Any) -> None:
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"The sink cannot write {str(path)!r}: it is a folder.")
    if path.exists() and path.stat().st_size and not ours(path):
        raise UsageError(
            f"{str(path)!r} exists and is not a file of results; it is not overwritten.", hint="Choose another file."
        )


def _is_our_csv(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).startswith(",".join(FIRST).encode() + b",")


def _is_our_parquet(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return MARK in (pq.read_schema(path).metadata or {})
    except pa.ArrowInvalid:
        return False
