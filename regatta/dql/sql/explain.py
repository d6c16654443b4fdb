"""What a query would do, as plain data and as text."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from regatta.dql.bound import BoundSelect, DerivedSource, IdsSource
from regatta.dql.sql.execute import decoded, statement_of

if TYPE_CHECKING:
    from regatta.dql.run import QueryContext

MAX_SHOWN_CHARACTERS = 200  # of a parameter


class Explanation(Mapping[str, Any]):
    """What would run. It prints as text."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    def __getitem__(self, key: str) -> Any:
        return self._content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def to_dict(self) -> dict[str, Any]:
        return dict(self._content)

    def __str__(self) -> str:
        return "\n".join(_lines(self._content))

    __repr__ = __str__


def plan_select(context: QueryContext, query: BoundSelect, analyze: bool) -> dict[str, Any]:
    """The statement, its parameters, SQLite's plan, and how many rows are expected.

    The rows are counted, which reads the catalog alone; SQLite does not estimate them. Where the query selects from
    models that another query would make, they are not known.
    """
    from regatta.dql.run import PLANS, derived_sources

    found: dict[str, Any] = {"kind": "select"}
    derived = derived_sources(query)
    inner = [dict(PLANS[type(source.query)](context, source.query, analyze)) for source in derived]
    if inner:
        found["from"] = inner
        query = _without_derived(query)
    statement = statement_of(query)
    catalog = context.repo.catalog
    lines = catalog.select(f"EXPLAIN QUERY PLAN {statement.text}", statement.values, statement.functions)
    found |= {
        "sql": statement.text,
        "parameters": [_shown(value) for value in statement.values],
        "plan": _tree(lines),
    }
    if inner:
        return found
    counted = catalog.select(f"SELECT COUNT(*) FROM ({statement.text})", statement.values, statement.functions)
    found["rows_expected"] = counted[0][0]
    if not analyze:
        return found
    begin = time.perf_counter()
    rows = catalog.select(statement.text, statement.values, statement.functions)
    ran = time.perf_counter()
    decoded(context.repo, rows, query, statement.types)
    done = time.perf_counter()
    return {**found, "rows": len(rows), "sql_seconds": ran - begin, "decode_seconds": done - ran}


def _without_derived(query: BoundSelect) -> BoundSelect:
    """The query as if those in it had made no versions: they do not run for an explanation."""
    from regatta.dql.rewrite import replace_parts

    def emptied(part: Any) -> Any:
        return IdsSource(part.variable, ()) if isinstance(part, DerivedSource) else part

    changed: BoundSelect = replace_parts(query, emptied)
    return changed


def _tree(rows: list[tuple[Any, ...]]) -> list[str]:
    """The lines of EXPLAIN QUERY PLAN, indented below those that they belong to."""
    depths = {0: -1}
    lines = []
    for ident, parent, _, text in rows:
        depths[ident] = depths.get(parent, -1) + 1
        lines.append("  " * depths[ident] + text)
    return lines


def _shown(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= MAX_SHOWN_CHARACTERS:
        return value
    return value[:MAX_SHOWN_CHARACTERS] + "..."


def _lines(content: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in content.items():
        name = key.replace("_", " ")
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for item in value:
                yield f"{indent}{name}:"
                yield from _lines(item, indent + "  ")
        elif isinstance(value, list) and key != "parameters":
            yield f"{indent}{name}:"
            yield from (f"{indent}  {item}" for item in value)
        elif isinstance(value, str) and "\n" in value.strip():
            yield f"{indent}{name}:"
            yield from (f"{indent}  {line}" for line in value.strip().splitlines())
        elif isinstance(value, float):
            yield f"{indent}{name}: {value:.4g}"
        elif isinstance(value, list):
            yield f"{indent}{name}: {', '.join(f'?{i + 1} = {json.dumps(item)}' for i, item in enumerate(value))}"
        else:
            yield f"{indent}{name}: {value}"
