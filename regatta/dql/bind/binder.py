"""The binder of one query: its variables and those of the queries around it, its sources, and its errors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

from regatta.dql import bound, tree
from regatta.dql.bind.types import NAMES, type_of_value
from regatta.dql.bound import BoundPart, Type, Variable
from regatta.dql.parse import QueryError, parse
from regatta.dql.schema import TABLE_NAMES, TABLES, VERSIONS, KnownNames
from regatta.dql.selectors import SelectorError, SelectorPattern, parse_selector
from regatta.dql.tree import Span
from regatta.errors import nearest

BoundQuery: TypeAlias = BoundPart  # BoundSelect, BoundSlice, BoundConstruct or BoundEvaluate
_OTHER_TABLES = {"model": (VERSIONS,), "models": (VERSIONS,), "layer": ("nodes",), "layers": ("nodes",)}
MAX_SOURCES = 16
MAX_SAVED_DEPTH = 16
MAX_VARIABLES = 256  # of a query and all queries in it: those of `with` may name each other again and again


@dataclass
class Binder:
    """Binds the parts of one query. `nested` makes the binder of a query inside of it.

    Methods for the modules that bind a kind of query: `bind_sources` declares its variables, `declare` one more,
    `bind_expression`, `bind_condition`, `bind_typed` and `bind_nodes` bind its parts, `error` shows a place.
    """

    text: str
    known: KnownNames
    parameters: Mapping[str, Any] = field(default_factory=dict)
    now: float = field(default_factory=time.time)
    outer: Binder | None = None
    variables: dict[str, Variable] = field(default_factory=dict)
    sources: list[bound.Source] = field(default_factory=list)
    queries: dict[str, tree.Query] = field(default_factory=dict)  # of `with`
    query_binders: dict[str, Binder] = field(default_factory=dict)  # in which those were written
    saved: tuple[str, ...] = ()  # the saved queries that are being read
    aliases: dict[str, bound.Expression] = field(default_factory=dict)  # columns, as `order by` may name them
    derived: dict[int | str, BoundQuery] = field(default_factory=dict)  # bound once, so that they run once
    implicit: Variable | None = None  # whose attributes may be named alone, where there is but one variable
    used_parameters: set[str] = field(default_factory=set)
    aggregates: str | None = "here"  # where aggregates cannot stand; None where they can
    numbers: Iterator[int] = field(default_factory=count)

    # Queries

    def bind_query(self, query: tree.Query) -> BoundQuery:
        """Bind a whole query, in a binder that is made for it."""
        names = [binding.name for binding in query.bindings]
        for place, binding in enumerate(query.bindings):
            if binding.name in names[:place]:
                raise self.error(f"The name {binding.name!r:.60} is given to two queries.", binding.span)
            # A query of `with` sees those before it, and no variables.
            self.query_binders[binding.name] = self._without_variables()
            self.queries[binding.name] = binding.query
        return BODIES[type(query.body)](self, query.body)

    def bind_select(self, query: tree.Query) -> bound.BoundSelect:
        """Bind a query that stands where only rows can."""
        found = self.nested().bind_query(query)
        if not isinstance(found, bound.BoundSelect):
            raise self.error("Only a select can stand here.", query.body.span)
        return found

    def nested(self) -> Binder:
        """The binder of a query inside of this one, which sees the variables of this one."""
        return Binder(
            self.text, self.known, self.parameters, self.now, self, queries=dict(self.queries),
            query_binders=dict(self.query_binders), saved=self.saved, derived=self.derived,
            used_parameters=self.used_parameters, numbers=self.numbers,
        )  # fmt: skip

    def _without_variables(self) -> Binder:
        made = self.nested()
        made.outer = None
        return made

    # Sources

    def bind_sources(self, sources: Sequence[tree.Source], default: str | None = None) -> tuple[bound.Source, ...]:
        """Declare the variables of `from`. A nested or saved query without an alias is called `default`."""
        for source in sources:
            if len(self.sources) == MAX_SOURCES:
                raise self.error(f"A query reads from at most {MAX_SOURCES} sources.", source.span)
            self.sources.append(self._source(source, default))
        return tuple(self.sources)

    def _source(self, source: tree.Source, default: str | None) -> bound.Source:
        if isinstance(source, tree.NestedSource):
            return self._query_source(self._without_variables(), source.query, source.alias or default, source.span)
        if isinstance(source, tree.SavedSource):
            return self._saved_source(source, default)
        if source.name in self.queries:
            binder = self.query_binders[source.name].nested()
            binder.outer = None
            return self._query_source(binder, self.queries[source.name], source.alias or source.name, source.span)
        table = source.name.lower()
        if table in TABLES and (source.alias is not None or source.name not in self.variables):
            variable = self.declare(source.alias or source.name, "null", source.span)
            return bound.TableSource(variable, table, span=source.span)
        if source.alias is not None and table != VERSIONS:
            known = (*TABLE_NAMES, *self.queries)
            raise self.error(
                f"There is no table {source.name!r:.60}.", source.span,
                candidates=_OTHER_TABLES.get(table) or nearest(source.name, known),
                hint=f"There are {', '.join(known)}; a saved query is in quotes.",
            )  # fmt: skip
        return bound.VersionSource(self.declare(source.alias or source.name, "model", source.span), span=source.span)

    def _saved_source(self, source: tree.SavedSource, default: str | None) -> bound.Source:
        texts = self.known.saved
        if source.name not in texts:
            hint = None if texts else "Save one: regatta query --save NAME 'select m'"
            raise self.error(
                f"There is no saved query {source.name!r:.60}.", source.span,
                candidates=nearest(source.name, texts), hint=hint,
            )  # fmt: skip
        if source.name in self.saved:
            chain = " -> ".join((*self.saved[self.saved.index(source.name) :], source.name))
            raise self.error(f"The saved query reads itself: {chain}.", source.span)
        if len(self.saved) == MAX_SAVED_DEPTH:
            raise self.error(f"Saved queries read each other more than {MAX_SAVED_DEPTH} deep.", source.span)
        inner = Binder(
            texts[source.name], self.known, self.parameters, self.now, saved=(*self.saved, source.name),
            derived=self.derived, used_parameters=self.used_parameters, numbers=self.numbers,
        )  # fmt: skip
        query = parse(inner.text).query
        return self._query_source(inner, query, source.alias or default, source.span, source.name)

    def _query_source(
        self, binder: Binder, query: tree.Query, name: str | None, span: Span, saved: str | None = None
    ) -> bound.Source:
        if name is None:
            raise self.error("This query needs a name.", span, hint="For example: from (select ...) as q")
        if isinstance(query.body, tree.Select):
            found = binder.bind_query(query)
            assert isinstance(found, bound.BoundSelect)
            variable = self.declare(name, "model" if found.models else "null", span)
            return bound.QuerySource(variable, found, span=span)
        key = id(query) if saved is None else saved
        if key not in self.derived:
            self.derived[key] = binder.bind_query(query)
        return bound.DerivedSource(self.declare(name, "model", span), self.derived[key], span=span)

    def declare(self, name: str, type: Type, span: Span) -> Variable:
        """A new variable of this query."""
        if name in self.variables:
            raise self.error(f"The name {name!r:.60} is given to two sources.", span)
        number = next(self.numbers)
        if number == MAX_VARIABLES:
            raise self.error(f"The query and those in it read from more than {MAX_VARIABLES} sources.", span)
        variable = Variable(name, number, type, span=span)
        self.variables[name] = variable
        return variable

    def find_variable(self, name: str) -> Variable | None:
        """The variable of this name, in this query or in one around it."""
        binder: Binder | None = self
        while binder is not None:
            if name in binder.variables:
                return binder.variables[name]
            binder = binder.outer
        return None

    def visible(self) -> list[str]:
        """The names of all variables that a part of this query can use."""
        return [*self.variables, *(self.outer.visible() if self.outer is not None else ())]

    def source_of(self, variable: Variable) -> bound.Source | None:
        """The source that a variable ranges over."""
        binder: Binder | None = self
        while binder is not None:
            for source in binder.sources:
                if source.variable == variable:
                    return source
            binder = binder.outer
        return None

    # Parts

    def bind_expression(self, expression: tree.Expression) -> bound.Expression:
        """Bind a value or a condition."""
        from regatta.dql.bind.expressions import bind_expression

        return bind_expression(self, expression)

    def bind_condition(self, expression: tree.Expression) -> bound.Expression:
        """Bind what must be true: a condition, or a set, which is true if it is not empty."""
        from regatta.dql.bind.expressions import bind_condition

        return bind_condition(self, expression)

    def bind_typed(self, expression: tree.Expression, wanted: Type, what: str) -> bound.Expression:
        """Bind a value of one type; `what` begins the sentence of the error: "The limit"."""
        found = self.bind_expression(expression)
        if found.type not in (wanted, "any"):
            raise self.error(f"{what} is {NAMES[wanted]}, not {NAMES[found.type]}.", expression.span)
        return found

    def bind_nodes(self, expression: tree.Expression) -> bound.LayerPath:
        """Bind a path that leads to layers: m["conv*"], m["conv1"].next."""
        found = self.bind_expression(expression)
        if not isinstance(found, bound.LayerPath):
            raise self.error(
                f"Layers are expected here, not {NAMES[found.type]}.", expression.span, hint='For example: m["conv*"]'
            )
        return found

    def bind_selector(self, selector: tree.Selector) -> SelectorPattern:
        pattern = selector.pattern
        text = self.parameter(pattern) if isinstance(pattern, tree.QueryParameter) else pattern
        if not isinstance(text, str):
            raise self.error("A selector is a text.", selector.span)
        try:
            return parse_selector(text)
        except SelectorError as error:
            raise self.error(str(error), selector.span) from None

    def bind_count(self, number: tree.Count | None, what: str, span: Span) -> int | None:
        """A whole number from 0, as in `limit`."""
        value = self.parameter(number) if isinstance(number, tree.QueryParameter) else number
        if value is None and number is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            place = number.span if isinstance(number, tree.QueryParameter) else span
            raise self.error(f"The {what} is a whole number from 0, not {value!r:.60}.", place)
        return value

    def parameter(self, parameter: tree.QueryParameter) -> Any:
        """The value that was passed for :name."""
        if parameter.name not in self.parameters:
            known = self.parameters
            raise self.error(
                f"The parameter :{parameter.name} has no value.", parameter.span,
                candidates=[f":{name}" for name in nearest(parameter.name, known)],
                hint=f"Pass it: query(text, {parameter.name}=...), or --set {parameter.name}=VALUE",
            )  # fmt: skip
        self.used_parameters.add(parameter.name)
        value = self.parameters[parameter.name]
        return list(value) if type_of_value(value) == "list" else value

    def place_of_name(self, name: str, query: Span) -> Span:
        """Where the name of what a query makes stands: it is the first in its text."""
        found = re.search(rf"\b{re.escape(name)}\b", self.text[query.start : query.end])
        return query if found is None else Span(query.start + found.start(), query.start + found.end())

    def place_of_text(self, text: str, query: Span) -> Span:
        """Where the text after `into` stands: it is the last one of its query."""
        start = self.text.rfind(text, query.start, query.end)
        return query if start < 0 or not text else Span(start, start + len(text))

    def error(self, message: str, span: Span, *, candidates: Iterable[str] = (), hint: str | None = None) -> QueryError:
        """An error that shows a place of the text."""
        return QueryError(message, self.text, span, candidates=candidates, hint=hint)


def _select(binder: Binder, body: Any) -> BoundQuery:
    from regatta.dql.bind.select import bind_select

    return bind_select(binder, body)


def _slice(binder: Binder, body: Any) -> BoundQuery:
    from regatta.dql.networks.bind_networks import bind_slice

    return bind_slice(binder, body)


def _construct(binder: Binder, body: Any) -> BoundQuery:
    from regatta.dql.networks.bind_networks import bind_construct

    return bind_construct(binder, body)


def _evaluate(binder: Binder, body: Any) -> BoundQuery:
    from regatta.dql.evaluation.bind_evaluate import bind_evaluate

    return bind_evaluate(binder, body)


# Each kind of query is bound by a function (binder, body) -> BoundQuery; it imports what it needs when it is called.
BODIES: dict[type[tree.Tree], Callable[[Binder, Any], BoundQuery]] = {
    tree.Select: _select,
    tree.Slice: _slice,
    tree.Construct: _construct,
    tree.Evaluate: _evaluate,
}


def bind(
    text: str,
    query: tree.Query,
    known: KnownNames,
    parameters: Mapping[str, Any] | None = None,
    now: float | None = None,
) -> BoundQuery:
    """Bind the tree of a text."""
    binder = Binder(text, known, parameters or {}, time.time() if now is None else now)
    found = binder.bind_query(query)
    unused = [name for name in binder.parameters if name not in binder.used_parameters]
    if unused:
        raise binder.error(
            f"The query has no parameter :{unused[0]}.", Span(0, len(text)),
            candidates=[f":{name}" for name in nearest(unused[0], binder.used_parameters)],
        )  # fmt: skip
    return found


def bind_condition(
    text: str,
    condition: tree.Expression,
    known: KnownNames,
    variables: Mapping[str, Variable],
    parameters: Mapping[str, Any] | None = None,
    now: float | None = None,
) -> bound.Expression:
    """Bind a condition alone, over these variables."""
    binder = Binder(text, known, parameters or {}, time.time() if now is None else now)
    binder.variables = dict(variables)
    binder.aggregates = "in a condition"
    return binder.bind_condition(condition)
