"""Bound queries: every name has a meaning, and every expression a type. They know no SQL and no text but their spans.

A value of type `any` (a hyperparameter, or metadata) has its own type at run time: number, text, boolean, list or null.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from regatta.dql.selectors import SelectorPattern
from regatta.dql.templates import NodeTest
from regatta.dql.tree import NOWHERE, Span

if TYPE_CHECKING:
    from regatta.dql.bind.binder import BoundQuery

Type: TypeAlias = Literal[
    "text", "number", "boolean", "time", "duration", "model", "models", "nodes", "texts", "list", "any", "null"
]
SET_TYPES = ("models", "nodes", "texts")
LineageKind: TypeAlias = Literal["parents", "children", "ancestors", "descendants"]


@dataclass(frozen=True)
class BoundPart:
    """A part of a bound query. The span does not count when two parts are compared."""

    span: Span = field(default=NOWHERE, compare=False, kw_only=True, repr=False)

    def children(self) -> Iterator[BoundPart]:
        """The parts that belong to the same query: those of a nested query do not."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, BoundSelect):
                continue
            if isinstance(value, BoundPart):
                yield value
            elif isinstance(value, tuple):
                yield from (item for item in value if isinstance(item, BoundPart) and not isinstance(item, BoundSelect))


# Values


@dataclass(frozen=True)
class Constant(BoundPart):
    """A time is in seconds since 1970, a duration in seconds. A list holds Python values."""

    value: Any
    type: Type


@dataclass(frozen=True)
class Variable(BoundPart):
    """A variable of a query; the number tells variables of the same name apart."""

    name: str
    number: int
    type: Type = "model"  # null: rows of a table or of a query, which are not values


@dataclass(frozen=True)
class ColumnValue(BoundPart):
    """A column of a table or of a nested query."""

    variable: Variable
    name: str
    type: Type


@dataclass(frozen=True)
class Attribute(BoundPart):
    """An attribute of a model: a column of its version (schema.py)."""

    model: Expression
    name: str
    type: Type


@dataclass(frozen=True)
class RunAttribute(BoundPart):
    """m.run.status: of the run that the version comes from."""

    model: Expression
    name: str
    type: Type


@dataclass(frozen=True)
class GitAttribute(BoundPart):
    model: Expression
    name: Literal["commit", "branch", "dirty"]
    type: Type


@dataclass(frozen=True)
class Hyperparameter(BoundPart):
    model: Expression
    name: str
    type: Type = "any"


@dataclass(frozen=True)
class Metadata(BoundPart):
    """m.meta.a.b: the value under these keys."""

    model: Expression
    keys: tuple[str, ...]
    type: Type = "any"


@dataclass(frozen=True)
class Metric(BoundPart):
    """`which` is last, min or max of a metric, or `at` a step. (`best` is min or max.)"""

    model: Expression
    name: str
    which: Literal["last", "min", "max", "at"]
    step: Expression | None = None
    type: Type = "number"


@dataclass(frozen=True)
class Tags(BoundPart):
    model: Expression
    type: Type = "texts"


@dataclass(frozen=True)
class Lineage(BoundPart):
    """ancestors(m) and the like: models, without m itself."""

    kind: LineageKind
    model: Expression
    type: Type = "models"


@dataclass(frozen=True)
class PathStep(BoundPart):
    """From layers to the layers that are reached from them in `least` to `most` steps (None: any number) and match."""

    forward: bool = True
    least: int = 1
    most: int | None = 1
    test: NodeTest | None = None


@dataclass(frozen=True)
class LayerPath(BoundPart):
    """The layers of a model that a selector names, and then those that steps lead to."""

    model: Expression
    selector: SelectorPattern
    steps: tuple[PathStep, ...] = ()
    type: Type = "nodes"


@dataclass(frozen=True)
class Arithmetic(BoundPart):
    operator: Literal["+", "-", "*", "/", "%"]
    left: Expression
    right: Expression
    type: Type


@dataclass(frozen=True)
class Negative(BoundPart):
    operand: Expression
    type: Type


@dataclass(frozen=True)
class Function(BoundPart):
    """abs, round, lower, upper, length, coalesce"""

    name: str
    arguments: tuple[Expression, ...]
    type: Type


@dataclass(frozen=True)
class Aggregate(BoundPart):
    """count, sum, avg, min, max over the rows of a group; without an argument, count(*)."""

    name: Literal["count", "sum", "avg", "min", "max"]
    argument: Expression | None
    distinct: bool
    type: Type


@dataclass(frozen=True)
class CountItems(BoundPart):
    """count of a set that each row has: layers, models or tags."""

    items: Expression
    type: Type = "number"


@dataclass(frozen=True)
class CountHas(BoundPart):
    """count(X has T): for how many layers of the selector it holds."""

    has: Has
    type: Type = "number"


@dataclass(frozen=True)
class QueryValue(BoundPart):
    """A query of one column and one row as a value; null if it has no row."""

    query: BoundSelect
    type: Type


# Conditions: three-valued


@dataclass(frozen=True)
class Compare(BoundPart):
    operator: Literal["=", "<>", "<", "<=", ">", ">="]
    left: Expression
    right: Expression
    type: Type = "boolean"


@dataclass(frozen=True)
class Like(BoundPart):
    text: Expression
    pattern: Expression
    type: Type = "boolean"


@dataclass(frozen=True)
class InList(BoundPart):
    item: Expression
    options: tuple[Expression, ...]
    type: Type = "boolean"


@dataclass(frozen=True)
class InSet(BoundPart):
    """A text in tags, or a model in a set of models."""

    item: Expression
    items: Expression
    type: Type = "boolean"


@dataclass(frozen=True)
class InQuery(BoundPart):
    item: Expression
    query: BoundSelect
    type: Type = "boolean"


@dataclass(frozen=True)
class Exists(BoundPart):
    query: BoundSelect
    type: Type = "boolean"


@dataclass(frozen=True)
class IsNull(BoundPart):
    operand: Expression
    type: Type = "boolean"


@dataclass(frozen=True)
class Has(BoundPart):
    """Whether some layer, or one reached from every layer of the selector, matches one of the tests."""

    nodes: LayerPath
    tests: tuple[NodeTest, ...]
    every: bool = False
    type: Type = "boolean"


@dataclass(frozen=True)
class NotEmpty(BoundPart):
    """A set as a condition."""

    items: Expression
    type: Type = "boolean"


@dataclass(frozen=True)
class Not(BoundPart):
    operand: Expression
    type: Type = "boolean"


@dataclass(frozen=True)
class And(BoundPart):
    operands: tuple[Expression, ...]
    type: Type = "boolean"


@dataclass(frozen=True)
class Or(BoundPart):
    operands: tuple[Expression, ...]
    type: Type = "boolean"


Expression: TypeAlias = (
    Constant | Variable | ColumnValue | Attribute | RunAttribute | GitAttribute | Hyperparameter | Metadata | Metric
    | Tags | Lineage | LayerPath | Arithmetic | Negative | Function | Aggregate | CountItems | CountHas | QueryValue
    | Compare | Like | InList | InSet | InQuery | Exists | IsNull | Has | NotEmpty | Not | And | Or
)  # fmt: skip


# Queries


@dataclass(frozen=True)
class VersionSource(BoundPart):
    """All versions of the repository."""

    variable: Variable


@dataclass(frozen=True)
class TableSource(BoundPart):
    variable: Variable
    table: str


@dataclass(frozen=True)
class QuerySource(BoundPart):
    """The rows of a query; a variable of type model, if those are models."""

    variable: Variable
    query: BoundSelect


@dataclass(frozen=True)
class DerivedSource(BoundPart):
    """The versions that a slice, construct or evaluate makes. It runs before the select, which then has their ids."""

    variable: Variable
    query: BoundQuery


@dataclass(frozen=True)
class IdsSource(BoundPart):
    """The versions with these ids."""

    variable: Variable
    ids: tuple[str, ...]


Source: TypeAlias = VersionSource | TableSource | QuerySource | DerivedSource | IdsSource


@dataclass(frozen=True)
class ResultColumn(BoundPart):
    """A column of the result."""

    expression: Expression
    name: str


@dataclass(frozen=True)
class OrderKey(BoundPart):
    expression: Expression
    descending: bool = False


@dataclass(frozen=True)
class BoundSelect(BoundPart):
    items: tuple[ResultColumn, ...]
    sources: tuple[Source, ...]
    where: Expression | None = None
    group: tuple[Expression, ...] = ()
    having: Expression | None = None
    order: tuple[OrderKey, ...] = ()
    limit: int | None = None
    offset: int | None = None
    distinct: bool = False

    @property
    def is_aggregated(self) -> bool:
        """Whether rows are groups; without `group by`, all rows are one group."""
        places = [item.expression for item in self.items] + [key.expression for key in self.order]
        has_aggregate = any(isinstance(part, Aggregate) for place in places for part in walk(place))
        return bool(self.group) or self.having is not None or has_aggregate

    @property
    def models(self) -> bool:
        """Whether the result is one column of models."""
        return len(self.items) == 1 and self.items[0].expression.type == "model"


def walk(part: BoundPart) -> Iterator[BoundPart]:
    """A part and everything in it, outermost first, without nested queries."""
    yield part
    for child in part.children():
        yield from walk(child)


def nested_queries(part: BoundPart) -> Iterator[BoundSelect]:
    """The queries that stand directly in a part."""
    for each in walk(part):
        query = getattr(each, "query", None)
        if isinstance(query, BoundSelect):
            yield query
