"""What people filter and order versions by, turned into one statement of SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from regatta.errors import UsageError
from regatta.repo.catalog.networks import canonical_json

Order: TypeAlias = Literal["newest", "oldest", "name", "best"]
ORDERS = ("newest", "oldest", "name", "best")
VERSION = (
    "v.key, v.id, v.name, v.number, v.created, v.message, v.network, v.run, v.config, v.snapshots, "
    "v.parameters, v.bytes, v.metadata, v.git, v.hyperparameters, v.metrics"
)


@dataclass(frozen=True)
class Filters:
    """Filters that must all match. `where` has a value, or a list of alternative values, by hyperparameter."""

    name: str | None = None  # or a pattern with * and ?
    search: str | None = None
    run: str | None = None  # its name or series
    since: float | None = None
    until: float | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    metric: str | None = None
    mode: str = "min"
    order: Order = "newest"
    limit: int | None = None

    def sql(self) -> tuple[str, list[Any]]:
        self._check()
        source, conditions, values = "model_version v", [], []
        if self.metric is not None:
            source = "metric_range r JOIN model_version v ON v.key = r.version"
            conditions.append(f"r.name = ? AND r.{self._column} IS NOT NULL")
            values.append(self.metric)
        for condition, *more in self._conditions():
            conditions.append(condition)
            values += more
        chosen = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        limit = "" if self.limit is None else f" LIMIT {int(self.limit)}"
        return f"SELECT {VERSION} FROM {source}{chosen} ORDER BY {self._order()}{limit}", values

    @property
    def _column(self) -> str:
        return "lowest" if self.mode == "min" else "highest"

    def _order(self) -> str:
        best = f"r.{self._column}{'' if self.mode == 'min' else ' DESC'}"
        return {
            "newest": "v.created DESC, v.key DESC",
            "oldest": "v.created, v.key",
            "name": "v.name, v.number",
            "best": best,
        }[self.order]

    def _check(self) -> None:
        if self.order not in ORDERS:
            raise UsageError(
                f"Versions are not ordered by {self.order!r}.", hint="It is one of " + ", ".join(ORDERS) + "."
            )
        if self.mode not in ("min", "max"):
            raise UsageError(f"The mode is {self.mode!r}.", hint='It is "min" or "max".')
        if self.order == "best" and self.metric is None:
            raise UsageError('order="best" needs a metric.', hint='For example: metric="loss".')
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"The limit is {self.limit}; it cannot be negative.")

    def _conditions(self) -> list[list[Any]]:
        found: list[list[Any]] = []
        if self.name is not None:
            is_pattern = set(self.name) & set("*?")
            escaped = self.name.replace("[", "[[]")  # names may contain brackets
            found.append(["v.name GLOB ?", escaped] if is_pattern else ["v.name = ?", self.name])
        if self.search is not None:
            found.append(["v.key IN (SELECT rowid FROM words WHERE words MATCH ?)", search_words(self.search)])
        if self.run is not None:
            found.append(["v.run IN (SELECT series FROM run WHERE run.name = ? OR series = ?)", self.run, self.run])
        if self.since is not None:
            found.append(["v.created >= ?", self.since])
        if self.until is not None:
            found.append(["v.created < ?", self.until])
        return found + [_where(name, value) for name, value in self.where.items()]


def search_words(text: str) -> str:
    """A query of the search index: every word must match the beginning of an indexed word."""
    words = [f'"{word.replace(chr(34), chr(34) * 2)}"*' for word in text.replace("\0", " ").split()]
    if not words:
        raise UsageError("The search has no words.")
    return " AND ".join(words)


def _where(name: str, value: Any) -> list[Any]:
    options = list(value) if isinstance(value, list | tuple | set) else [value]
    if not options:
        raise UsageError(f"The list of values for {name!r} is empty.")
    tests, values = [], []
    for option in options:
        is_number = isinstance(option, int | float) and not isinstance(option, bool)
        tests.append("number = ?" if is_number else "json = ?")
        try:
            values.append(float(option) if is_number else canonical_json(option, f"value of {name!r}"))
        except OverflowError as error:
            raise UsageError(f"The value of {name!r:.200} to look for is too large for a float.") from error
    condition = f"v.key IN (SELECT version FROM hyperparameter WHERE name = ? AND ({' OR '.join(tests)}))"
    return [condition, name, *values]
