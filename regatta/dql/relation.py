"""Relation: what `Repo.query` returns. Nothing runs until rows are asked for, and then it runs once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from regatta.dql.arrow import arrow_table
from regatta.dql.bind.binder import Binder
from regatta.dql.bound import (
    BoundPart,
    BoundSelect,
    ColumnValue,
    DerivedSource,
    Expression,
    Metric,
    QuerySource,
    ResultColumn,
    Type,
    Variable,
    walk,
)  # fmt: skip
from regatta.dql.networks.bound_networks import BoundConstruct, BoundSlice
from regatta.dql.parse import parse_condition
from regatta.dql.rewrite import rewrite
from regatta.dql.run import (
    LAUNCHERS,
    PreparedQuery,
    QueryContext,
    make_versions,
    plan,
    prepare,
    with_derived,
)  # fmt: skip
from regatta.dql.saved_queries import SavedQueries
from regatta.dql.schema import known_names
from regatta.errors import UsageError
from regatta.repo.catalog.records import MAX_ROWS, Versions, data_frame, table_html

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from regatta.dql.sql.explain import Explanation
    from regatta.run import Run

_FIRST_NUMBER = 1_000  # of variables that a relation adds; a text has fewer


class Relation:
    """The rows of a query. Iterating over it gives versions if the query selects models, else mappings."""

    def __init__(self, prepared: PreparedQuery, steps: int = 0) -> None:
        self._prepared, self._steps = prepared, steps

    @property
    def text(self) -> str:
        """The text of the query, without later conditions."""
        return self._prepared.context.text

    @property
    def explains(self) -> bool:
        """Whether the text began with `explain`."""
        return self._prepared.explain != "no"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        query = self._prepared.query
        return tuple(item.name for item in query.items) if isinstance(query, BoundSelect) else (_result_name(query),)

    @property
    def types(self) -> tuple[Type, ...]:
        query = self._prepared.query
        return tuple(item.expression.type for item in query.items) if isinstance(query, BoundSelect) else ("model",)

    @property
    def models(self) -> bool:
        """Whether the rows are versions, rather than columns."""
        return self.types == ("model",)

    @property
    def makes_versions(self) -> bool:
        """Whether running it writes to the repository: a slice, construct or evaluate, or a select from one."""
        from regatta.dql.run import derived_sources

        query = self._prepared.query
        return not isinstance(query, BoundSelect) or bool(derived_sources(query))

    @property
    def derives(self) -> bool:
        """Whether the query is a slice or a construct, which makes versions with other networks."""
        return isinstance(self._prepared.query, BoundSlice | BoundConstruct)

    @property
    def trains(self) -> bool:
        """Whether the query is an evaluate, which launches a run."""
        return type(self._prepared.query) in LAUNCHERS

    def with_options(self, *, max_models: int | None = None, seed: int | None = None) -> Relation:
        """The same query with another limit on the models that it may make or train, or another seed of new layers."""
        for name, value in (("max_models", max_models), ("seed", seed)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise UsageError(f"{name} is a whole number from 0, not {value!r:.60}.")
        old = self._prepared.context
        context = replace(
            old,
            max_models=old.max_models if max_models is None else max_models,
            seed=old.seed if seed is None else seed,
        )
        return Relation(replace(self._prepared, context=context), self._steps)

    # More conditions

    def where(self, condition: str, **parameters: Any) -> Relation:
        """The rows for which a condition holds.

        It names models and columns as the query does. Where the rows are models, `name` is the name of the model.
        """
        source, columns = self._as_source()
        context = self._prepared.context
        known = known_names(context.repo, SavedQueries(context.repo.folder))
        binder = Binder(condition, known, parameters, context.repo.clock())
        binder.sources = [source]
        binder.aliases = dict(columns)
        if source.variable.type == "model":
            binder.variables, binder.implicit = {source.variable.name: source.variable}, source.variable
        binder.aggregates = "in where"
        bound = binder.bind_condition(parse_condition(condition))
        items = tuple(ResultColumn(column, name) for name, column in columns.items())
        return self._with(BoundSelect(items, (source,), bound))

    def limit(self, count: int, offset: int = 0) -> Relation:
        """At most this many rows, without the first `offset` ones."""
        for value in (count, offset):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UsageError(f"A limit is a whole number from 0, not {value!r:.60}.")
        source, columns = self._as_source()
        items = tuple(ResultColumn(column, name) for name, column in columns.items())
        return self._with(BoundSelect(items, (source,), limit=count, offset=offset))

    def _as_source(self) -> tuple[QuerySource | DerivedSource, Mapping[str, Expression]]:
        query = self._prepared.query
        number = _FIRST_NUMBER + self._steps
        if not isinstance(query, BoundSelect):
            variable = Variable(self.columns[0], number, "model")
            return DerivedSource(variable, query), {variable.name: variable}
        if query.models:
            variable = Variable(self.columns[0], number, "model")
            return QuerySource(variable, query), {variable.name: variable}
        variable = Variable("", number, "null")
        names = {item.name: ColumnValue(variable, item.name, item.expression.type) for item in query.items}
        return QuerySource(variable, query), names

    def _with(self, query: BoundSelect) -> Relation:
        return Relation(replace(self._prepared, query=rewrite(query)), self._steps + 1)

    # Rows

    @cached_property
    def _rows(self) -> list[tuple[Any, ...]]:
        self._check_runs()
        context, query = self._prepared.context, self._prepared.query
        if not isinstance(query, BoundSelect):
            return [(version,) for version in make_versions(context, query)]
        from regatta.dql.sql.execute import select_rows

        return select_rows(context.repo, with_derived(context, query))

    def _check_runs(self) -> None:
        """Refuse to make or train what the text only wants to have explained."""
        if self.explains and self.makes_versions:
            raise UsageError(
                "The text begins with explain, so that nothing is made or trained.", hint="Call explain(), or leave it."
            )

    def tuples(self) -> list[tuple[Any, ...]]:
        """The rows as tuples, in the order of the columns."""
        return list(self._rows)

    def rows(self) -> list[dict[str, Any]]:
        """The rows as mappings by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self._rows]

    def versions(self) -> Versions:
        """The versions, if the query selects models."""
        if not self.models:
            raise UsageError("The rows of this query are not models.", hint="For example: select m")
        return Versions(row[0] for row in self._rows if row[0] is not None)

    def first(self) -> Any:
        """The first row; None if there is none."""
        return next(iter(self.limit(1) if isinstance(self._prepared.query, BoundSelect) else self), None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.versions() if self.models else self.rows())

    def __len__(self) -> int:
        return len(self._rows)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Relation {' '.join(self.text.split())!r:.200}>"

    # Other forms

    def plain_rows(self) -> list[dict[str, Any]]:
        """The rows for files: a model is its name@number, a time a datetime, a duration seconds."""
        return [{name: plain_value(value) for name, value in row.items()} for row in self.rows()]

    def to_pandas(self) -> pd.DataFrame:
        """A data frame: of versions with everything about them, or of the columns."""
        if self.models:
            return self.versions().to_pandas()
        frame = data_frame(self.plain_rows())
        return frame if len(frame) else frame.reindex(columns=list(self.columns))

    def to_arrow(self) -> pa.Table:
        """A table of Arrow, with the columns of `to_pandas`. Values that are not of one type become text."""
        if not self.models:
            return arrow_table(self.plain_rows(), dict(zip(self.columns, self.types, strict=True)))
        rows = self.versions().rows()
        return arrow_table(rows, {name: None for row in rows for name in row} or {"name": "text", "number": "number"})

    def explain(self, *, analyze: bool = False) -> Explanation:
        """What would run: the SQL, the rows expected, the models to make and to train. Nothing is made or trained.

        With `analyze`, or if the text begins with `explain analyze`, selects run, for their rows and time.
        """
        from regatta.dql.sql.explain import Explanation

        context, query = self._prepared.context, self._prepared.query
        analyze = analyze or self._prepared.explain == "analyze"
        found = plan(context, query, analyze)
        return Explanation({"query": context.text, "seconds": dict(self._prepared.seconds), **found})

    def launch(self, **options: Any) -> Run:
        """Train what an `evaluate` enumerates; options as for `Sweep.launch`. The run can be stopped and resumed."""
        context, query = self._prepared.context, self._prepared.query
        launcher = LAUNCHERS.get(type(query))
        if launcher is None:
            raise UsageError(
                "Only an evaluate can be launched.", hint='For example: evaluate m from "query" with config = "file"'
            )
        self._check_runs()
        return launcher(replace(context, launch={**context.launch, **options}), query)  # type: ignore[no-any-return]

    def _repr_html_(self) -> str:
        if self.explains:
            return f"<pre>{escape(str(self.explain()))}</pre>"
        if self.makes_versions and "_rows" not in self.__dict__:  # showing a query must not train models
            return f"<pre>{escape(self.text)}</pre><p>It has not run: iterate over it, or call launch().</p>"
        if self.models:
            return self.versions()._repr_html_()
        rows = [list(row.items()) for row in self.plain_rows()[:MAX_ROWS]]
        more = f"<p>and {len(self) - MAX_ROWS} more</p>" if len(self) > MAX_ROWS else ""
        return table_html(list(self.columns), rows) + more


def query(context: QueryContext, parameters: Mapping[str, Any]) -> Relation:
    """The relation of a text: it is parsed and bound now, and runs when its rows are needed."""
    return Relation(prepare(context, parameters))


def metrics_at_their_end(relation: Relation) -> tuple[str, ...]:
    """The metrics whose last value the conditions and the order of a query use."""
    parts = walk(relation._prepared.query)
    return tuple(dict.fromkeys(part.name for part in parts if isinstance(part, Metric) and part.which == "last"))


def plain_value(value: Any) -> Any:
    """A value for tables and files."""
    if hasattr(value, "reference"):
        return value.reference
    return value.total_seconds() if isinstance(value, timedelta) else value


def json_value(value: Any) -> Any:
    """A value as JSON: times as in ISO 8601."""
    value = plain_value(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _result_name(query: BoundPart) -> str:
    return str(getattr(query, "name", "m"))
