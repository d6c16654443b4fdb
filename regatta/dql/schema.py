"""What queries can name: the tables, the attributes of versions, and the names that a repository has.

Every name has a type and its column of the catalog (regatta/repo/catalog/migrations.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from regatta.dql.bound import Type

if TYPE_CHECKING:
    from regatta.repo import Repo


@dataclass(frozen=True)
class SchemaColumn:
    """`sql` stands for the rows under the alias {row}."""

    type: Type
    sql: str


@dataclass(frozen=True)
class QueryTable:
    """`sql` is what stands after FROM; `key` orders the rows."""

    sql: str
    columns: Mapping[str, SchemaColumn]
    key: tuple[str, ...]


def _columns(**types: Type) -> dict[str, SchemaColumn]:
    return {name: SchemaColumn(type_, f'{{row}}."{name}"') for name, type_ in types.items()}


_VERSION_ID = SchemaColumn("text", "(SELECT id FROM model_version WHERE key = {row}.version)")

VERSION_ATTRIBUTES: Mapping[str, SchemaColumn] = {
    **_columns(id="text", name="text", number="number"),
    "reference": SchemaColumn("text", "{row}.name || '@' || {row}.number"),
    "creation_time": SchemaColumn("time", "{row}.created"),
    "created": SchemaColumn("time", "{row}.created"),
    **_columns(message="text", parameters="number", bytes="number", snapshots="number", network="text", config="text"),
}
RUN_ATTRIBUTES: Mapping[str, SchemaColumn] = _columns(
    name="text", status="text", started="time", metric="text", mode="text"
)
GIT_ATTRIBUTES: Mapping[str, Type] = {"commit": "text", "branch": "text", "dirty": "boolean"}
VERSIONS = "versions"  # a variable over this table is one over versions

TABLES: Mapping[str, QueryTable] = {
    "snapshots": QueryTable(
        "snapshot",
        {
            "version": _VERSION_ID,
            **_columns(position="number", epoch="number", kind="text", reference="text", snapshot="text"),
        },
        ("version", "position"),
    ),
    "metrics": QueryTable(
        "metric",
        {"version": _VERSION_ID, **_columns(name="text", step="number", value="number")},
        ("version", "name", "step"),
    ),
    "hyperparameters": QueryTable(
        "hyperparameter",
        {
            "version": _VERSION_ID,
            **_columns(name="text"),
            "value": SchemaColumn("any", "NULLIF({row}.json, 'null')"),
            **_columns(number="number"),
        },
        ("version", "name"),
    ),
    "runs": QueryTable(
        "run",
        {
            "id": SchemaColumn("text", "{row}.series"),
            **_columns(name="text", folder="text", status="text", started="time", metric="text", mode="text"),
        },
        ("series",),
    ),
    "nodes": QueryTable(
        "node",
        {
            **_columns(network="text"),
            "id": SchemaColumn("text", "{row}.node"),
            **_columns(position="number", kind="text", name="text", attributes="text"),
        },
        ("network", "position"),
    ),
    "edges": QueryTable(
        "edge",
        _columns(network="text", source="text", target="text", operand="number"),
        ("network", "target", "operand"),
    ),
    "parents": QueryTable(
        "parent",
        {
            "version": SchemaColumn("text", "(SELECT id FROM model_version WHERE key = {row}.derived)"),
            "parent": SchemaColumn("text", "(SELECT id FROM model_version WHERE key = {row}.base)"),
            **_columns(kind="text", epoch="number"),
            "message": SchemaColumn("text", '{row}."commit"'),
        },
        ("derived", "base"),
    ),
    "tags": QueryTable("tag", {**_columns(name="text"), "version": _VERSION_ID, **_columns(created="time")}, ("name",)),
    "files": QueryTable(
        "file",
        {"version": _VERSION_ID, **_columns(path="text", hash="text", bytes="number", executable="boolean")},
        ("version", "path"),
    ),
}
TABLE_NAMES = (VERSIONS, *TABLES)


@dataclass(frozen=True)
class KnownNames:
    """What the binder must know of a repository. `saved` has the texts of saved queries by name.

    None stands for every name: in an empty repository, no metric and no hyperparameter is an error.
    """

    metrics: Collection[str] | None = None
    hyperparameters: Collection[str] | None = None
    saved: Mapping[str, str] = field(default_factory=dict)
    types_of: Callable[[str], frozenset[str]] = lambda name: frozenset()  # of the values of a hyperparameter


class CatalogNames(Collection[str]):
    """The names of metrics or hyperparameters: one is looked up, all are listed only for an error."""

    def __init__(self, has: Callable[[str], bool], listed: Callable[[], list[str]]) -> None:
        self._has, self._listed = has, listed

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._has(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed())

    def __len__(self) -> int:
        return len(self._listed())


def known_names(repo: Repo, saved: Mapping[str, str] | None = None) -> KnownNames:
    catalog = repo.catalog
    if catalog.is_empty():
        return KnownNames(saved=saved or {})
    metrics = CatalogNames(catalog.has_metric, catalog.metric_names)
    hyperparameters = CatalogNames(catalog.has_hyperparameter, catalog.hyperparameter_names)
    return KnownNames(metrics, hyperparameters, saved or {}, cache(catalog.hyperparameter_types))
