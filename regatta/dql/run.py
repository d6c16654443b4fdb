"""The pipeline of a query: text to tree, bound query, rewritten, operators.

A kind of query has an operator, and a description for `explain`, in the two tables below. Each imports what it needs
when it is called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from regatta.dql import tree
from regatta.dql.bind import BoundQuery, bind
from regatta.dql.bound import BoundPart, BoundSelect, DerivedSource, IdsSource
from regatta.dql.evaluation.bound_evaluate import BoundEvaluate
from regatta.dql.networks.bound_networks import BoundConstruct, BoundDerivation, BoundSlice
from regatta.dql.parse import QueryError, parse
from regatta.dql.rewrite import replace_parts, rewrite
from regatta.dql.saved_queries import SavedQueries
from regatta.dql.schema import known_names
from regatta.errors import UsageError

if TYPE_CHECKING:
    from regatta.repo import Repo, Version

MAX_MODELS = 1_000  # that a query may train, unless more are asked for
B = TypeVar("B", bound=BoundPart)


@dataclass(frozen=True)
class QueryContext:
    """What operators get beside the bound query. `text` is kept as metadata of the versions that they make.

    `parameters` are the values of those in the text. New layers are initialised by the `seed`.
    `launch` has options for the run that an `evaluate` starts, such as its name and its workers. `say` gets messages
    for people, one line each.
    """

    repo: Repo
    text: str
    max_models: int = MAX_MODELS
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    launch: Mapping[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class PreparedQuery:
    """A query that was bound and rewritten: nothing is read or written before that."""

    context: QueryContext
    query: BoundQuery
    explain: Literal["no", "plan", "analyze"] = "no"
    seconds: Mapping[str, float] = field(default_factory=dict)  # what parse, bind and rewrite took


def prepare(context: QueryContext, parameters: Mapping[str, Any] | None = None) -> PreparedQuery:
    """Parse, bind and rewrite the text of the context."""
    context = replace(context, parameters=dict(parameters or {}))
    begin = time.perf_counter()
    statement = _parsed(context)
    parsed = time.perf_counter()
    try:
        query = rewrite(_bound(context, statement, context.parameters))
    except RecursionError:
        raise UsageError("The query is nested too deeply.", hint="Name its parts: with x as (...) select ...") from None
    done = time.perf_counter()
    return PreparedQuery(context, query, statement.explain, {"parse": parsed - begin, "bind": done - parsed})


def _parsed(context: QueryContext) -> tree.Statement:
    try:
        return parse(context.text)
    except QueryError:
        name = context.text.strip().rstrip(";")
        if name not in SavedQueries(context.repo.folder):
            raise
        raise UsageError(f"{name!r} is the name of a saved query.", hint=f'Read it: select m from "{name}"') from None


def _bound(context: QueryContext, statement: tree.Statement, parameters: Mapping[str, Any]) -> BoundQuery:
    known = known_names(context.repo, SavedQueries(context.repo.folder))
    return bind(context.text, statement.query, known, parameters, context.repo.clock())


Operator: TypeAlias = Callable[[QueryContext, Any], "Sequence[Version]"]
Plan: TypeAlias = Callable[[QueryContext, Any, bool], Mapping[str, Any]]


def make_versions(context: QueryContext, query: BoundQuery) -> Sequence[Version]:
    """Run a query whose result is versions: those that it selects, or those that it makes."""
    return OPERATORS[type(query)](context, query)


def with_derived(context: QueryContext, query: B) -> B:
    """The query with the ids of versions in place of the queries that make them, which run now, each once."""
    made: dict[int, tuple[str, ...]] = {}

    def replaced(value: Any) -> Any:
        if isinstance(value, DerivedSource):
            key = id(value.query)
            if key not in made:
                made[key] = tuple(version.id for version in make_versions(context, value.query))
            return IdsSource(value.variable, made[key], span=value.span)
        if isinstance(value, BoundPart):
            parts = {each.name: getattr(value, each.name) for each in fields(value)}
            changed = {name: new for name, old in parts.items() if (new := replaced(old)) is not old}
            return replace(value, **changed) if changed else value
        if isinstance(value, tuple):
            items = tuple(replaced(item) for item in value)
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return value

    return replaced(query)  # type: ignore[no-any-return]


def _select_versions(context: QueryContext, query: BoundSelect) -> Sequence[Version]:
    from regatta.dql.sql.execute import select_rows

    if not query.models:
        raise UsageError("The query has columns, and its rows are not models.", hint="For example: select m")
    return [row[0] for row in select_rows(context.repo, with_derived(context, query)) if row[0] is not None]


def _plan_select(context: QueryContext, query: BoundSelect, analyze: bool) -> Mapping[str, Any]:
    from regatta.dql.sql.explain import plan_select

    return plan_select(context, query, analyze)


def _make_derived(context: QueryContext, query: BoundDerivation) -> Sequence[Version]:
    from regatta.dql.networks.operators import make_derived

    return make_derived(context, query)


def _plan_derived(context: QueryContext, query: BoundDerivation, analyze: bool) -> Mapping[str, Any]:
    from regatta.dql.networks.operators import plan_derived

    return plan_derived(context, query, analyze)


def _evaluate(context: QueryContext, query: BoundEvaluate) -> Sequence[Version]:
    from regatta.dql.evaluation.operators import evaluate_versions

    return evaluate_versions(context, query)


def _plan_evaluate(context: QueryContext, query: BoundEvaluate, analyze: bool) -> Mapping[str, Any]:
    from regatta.dql.evaluation.operators import plan_evaluation

    return plan_evaluation(context, query, analyze)


def _launch_evaluation(context: QueryContext, query: BoundEvaluate) -> Any:
    from regatta.dql.evaluation.operators import launch_evaluation

    return launch_evaluation(context, query)


# By kind of query, as bound: what runs it and returns versions, and what describes it without running it.
OPERATORS: dict[type[BoundPart], Operator] = {
    BoundSelect: _select_versions, BoundSlice: _make_derived, BoundConstruct: _make_derived,
    BoundEvaluate: _evaluate,
}  # fmt: skip
PLANS: dict[type[BoundPart], Plan] = {
    BoundSelect: _plan_select, BoundSlice: _plan_derived, BoundConstruct: _plan_derived, BoundEvaluate: _plan_evaluate,
}  # fmt: skip
# What launches the run of a query that trains, and returns the run.
LAUNCHERS: dict[type[BoundPart], Callable[[QueryContext, Any], Any]] = {BoundEvaluate: _launch_evaluation}


def plan(context: QueryContext, query: BoundQuery, analyze: bool = False) -> Mapping[str, Any]:
    """What would run, as plain data; with `analyze`, selects run for their time."""
    return PLANS[type(query)](context, query, analyze)


def derived_sources(query: BoundPart) -> list[DerivedSource]:
    """The queries anywhere inside of a select that make versions, each once."""
    found: dict[int, DerivedSource] = {}

    def note(part: BoundPart) -> BoundPart:
        if isinstance(part, DerivedSource):
            found.setdefault(id(part.query), part)
        return part

    if isinstance(query, BoundSelect):
        replace_parts(query, note)
    return list(found.values())
