"""What a repository returns: frozen records, and lists of them for notebooks and data frames."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from regatta.errors import CorruptError, MissingExtraError
from regatta.repo.file_store import FileEntry

if TYPE_CHECKING:
    import pandas as pd

SHORT = 10  # digits of an id that are shown
MAX_ROWS = 50  # of a table in a notebook
T = TypeVar("T")


@dataclass(frozen=True)
class PlainRow:
    """A record whose row in a table has all its fields."""

    def row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class MetricRange:
    """The extremes and the last value of a metric; NaN if it never was a number."""

    lowest: float
    highest: float
    last: float
    lowest_step: int | None = None
    highest_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True)
class Version:
    """One version of a model, named by `name@number` or `id`. Long fields are parsed when they are first read."""

    key: int = field(repr=False)
    id: str
    name: str
    number: int
    created: float
    message: str
    network: str | None = field(repr=False)  # the hash of its network
    run: str | None = field(repr=False)
    config: str | None = field(repr=False)
    snapshots: int
    parameters: int | None
    bytes: int | None
    _metadata: str = field(repr=False)
    _git: str | None = field(repr=False)
    _hyperparameters: str = field(repr=False)
    _metrics: str = field(repr=False)

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]]) -> list[Version]:
        """Versions from rows, in the order of the fields. A list may have thousands, so `__init__` is left out."""
        made = []
        for row in rows:
            version = cls.__new__(cls)
            put = version.__dict__  # written key by key: all versions share one table of keys
            (
                put["key"], put["id"], put["name"], put["number"], put["created"], put["message"], put["network"],
                put["run"], put["config"], put["snapshots"], put["parameters"], put["bytes"], put["_metadata"],
                put["_git"], put["_hyperparameters"], put["_metrics"],
            ) = row  # fmt: skip
            made.append(version)
        return made

    @property
    def reference(self) -> str:
        """name@number"""
        return f"{self.name}@{self.number}"

    @property
    def when(self) -> datetime:
        with _reading():
            return datetime.fromtimestamp(self.created, UTC)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        return _parsed(self._metadata)

    @cached_property
    def git(self) -> dict[str, Any] | None:
        """{"commit", "branch", "dirty"} of the git working tree at the time of the commit."""
        return None if self._git is None else _parsed(self._git)

    @cached_property
    def hyperparameters(self) -> dict[str, Any]:
        return _parsed(self._hyperparameters)

    @cached_property
    def metrics(self) -> dict[str, MetricRange]:
        """The range of each metric; `Repo.metrics` has all values."""
        with _reading():
            return {
                name: MetricRange(_number(low), _number(high), _number(last), *steps)
                for name, (low, high, last, *steps) in _parsed(self._metrics).items()
            }

    def fields(self, *names: str) -> dict[str, Any]:
        """The values of these attributes by name, for JSON."""
        return {name: getattr(self, name) for name in names}

    def row(self) -> dict[str, Any]:
        """Flat, for a table: hyperparameters under their names, and the last value of each metric."""
        head = {"id": self.id, "name": self.name, "number": self.number, "created": self.when, "message": self.message}
        tail = {"snapshots": self.snapshots, "parameters": self.parameters, "bytes": self.bytes, "run": self.run}
        return {
            **head,
            **{name: value for name, value in self.hyperparameters.items() if name not in (*head, *tail)},
            **{f"metric.{name}": found.last for name, found in self.metrics.items()},
            **tail,
        }


@dataclass(frozen=True)
class SnapshotRecord(PlainRow):
    """One snapshot of a version. `id` is its id in the parameter store; None while it is a file of its run."""

    position: int
    epoch: int | None
    kind: str
    reference: str
    id: str | None
    digest: str | None = None


@dataclass(frozen=True)
class MetricPoint(PlainRow):
    name: str
    step: int
    value: float


@dataclass(frozen=True)
class Link(PlainRow):
    """`derived` is a child of `base` (both are ids) after that epoch; `commit` is the message."""

    base: str
    derived: str
    kind: str
    epoch: int | None
    commit: str


@dataclass(frozen=True)
class RunEntry:
    """A run that has versions; `folder` is the path of the run, relative to the repository if it is inside."""

    series: str
    name: str
    folder: str
    status: str
    started: float
    metric: str
    mode: str
    header: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Tag(PlainRow):
    name: str
    version: str
    created: float


class Records(list[T]):
    """A list of records."""

    def to_pandas(self) -> pd.DataFrame:
        """A row per record."""
        return data_frame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        return [record.row() for record in self]  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        rows = self.rows()[:MAX_ROWS]
        more = f"<p>and {len(self) - MAX_ROWS} more</p>" if len(self) > MAX_ROWS else ""
        return (
            table_html(list(dict.fromkeys(key for row in rows for key in row)), [list(row.items()) for row in rows])
            + more
        )


def data_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("pandas", "pandas", "to_pandas") from error
    return pd.DataFrame(rows)


class Versions(Records[Version]):
    """Versions in the requested order; a lineage has the links between them, too."""

    def __init__(self, versions: Iterable[Version] = (), links: Sequence[Link] = ()) -> None:
        super().__init__(versions)
        self.links = tuple(links)

    def _repr_html_(self) -> str:
        rows = [list(_shown(version).items()) for version in self[:MAX_ROWS]]
        more = f"<p>and {len(self) - MAX_ROWS} more</p>" if len(self) > MAX_ROWS else ""
        return table_html(_varying(rows), rows) + more


@dataclass(frozen=True)
class Description:
    """Everything that the catalog has about one version."""

    version: Version
    tags: tuple[str, ...]
    network: Mapping[str, Any] | None = field(repr=False)
    snapshots: Records[SnapshotRecord]
    metrics: Records[MetricPoint] = field(repr=False)
    files: tuple[FileEntry, ...]
    parents: tuple[Link, ...]
    children: tuple[Link, ...]
    run: RunEntry | None

    def _repr_html_(self) -> str:
        known = {**_shown(self.version), "tags": ", ".join(self.tags), "files": ", ".join(f.path for f in self.files)}
        return table_html(["", "value"], [[("", key), ("value", value)] for key, value in known.items() if value != ""])


def table_html(columns: Sequence[str], rows: Sequence[Sequence[tuple[str, Any]]]) -> str:
    """A table for notebooks; all text is escaped."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(dict(row).get(column, '')))}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def range_of(points: Mapping[int, float]) -> MetricRange:
    """The range of a metric from its values by step."""
    numbers = {step: value for step, value in points.items() if not math.isnan(value)}
    if not numbers:
        return MetricRange(math.nan, math.nan, math.nan, None, None, max(points, default=None))
    low, high = min(numbers, key=lambda step: numbers[step]), max(numbers, key=lambda step: numbers[step])
    last = max(points)
    return MetricRange(numbers[low], numbers[high], points[last], low, high, last)


def _shown(version: Version) -> dict[str, Any]:
    return {
        "version": version.reference,
        "id": version.id[:SHORT],
        "created": version.when.strftime("%Y-%m-%d %H:%M"),
        "message": version.message,
        **version.hyperparameters,
        **{name: found.last for name, found in version.metrics.items()},
        "parameters": version.parameters,
        "snapshots": version.snapshots,
    }


def _varying(rows: Sequence[Sequence[tuple[str, Any]]]) -> list[str]:
    """The columns whose values differ between rows, and those that are always shown."""
    columns = dict.fromkeys(key for row in rows for key, _ in row)
    always = ("version", "id", "created", "message")
    values = {column: {str(dict(row).get(column)) for row in rows} for column in columns}
    return [column for column in columns if column in always or len(rows) < 2 or len(values[column]) > 1]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


@contextmanager
def _reading() -> Iterator[None]:
    """Fields are parsed when they are read, long after SQLite gave them: it does not see that a bit has flipped."""
    try:
        yield
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise CorruptError(
            f"The catalog has content that cannot be read: {error!s:.200}.",
            hint="`regatta fsck --repair` makes a new one from the version log.",
        ) from error


def _parsed(text: str) -> dict[str, Any]:
    with _reading():
        return dict(json.loads(text))


def _number(value: float | str | None) -> float:
    return math.nan if value is None else float(value)
