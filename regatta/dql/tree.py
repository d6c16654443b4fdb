"""The syntax tree of a query: what was written, with its place in the text, before any name has a meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

Scalar: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True)
class Span:
    """From which character of the text to which."""

    start: int
    end: int


NOWHERE = Span(0, 0)


@dataclass(frozen=True)
class Tree:
    """A part of a query. The span does not count when two trees are compared."""

    span: Span = field(default=NOWHERE, compare=False, kw_only=True, repr=False)

    def children(self) -> Iterator[Tree]:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Tree):
                yield value
            elif isinstance(value, tuple):
                yield from (item for item in value if isinstance(item, Tree))


# Values


@dataclass(frozen=True)
class Value(Tree):
    value: Scalar


@dataclass(frozen=True)
class Duration(Tree):
    """7d, 3h, 30min: a length of time."""

    seconds: float


@dataclass(frozen=True)
class QueryParameter(Tree):
    """:name, whose value is passed beside the query."""

    name: str


@dataclass(frozen=True)
class List(Tree):
    items: tuple[Expression, ...]


# Paths: m.name, m.metric.loss.at(10), m["conv*"].next, m["conv1"] -> POOL ->{1,3} FULL


@dataclass(frozen=True)
class Field(Tree):
    """`.name` or `."a name"`; with arguments `.at(10)`."""

    name: str
    arguments: tuple[Expression, ...] | None = None


@dataclass(frozen=True)
class Selector(Tree):
    """`["conv[1,3,5]"]`"""

    pattern: str | QueryParameter


@dataclass(frozen=True)
class NodeTemplate(Tree):
    """`POOL`, `POOL("MAX")`, `CONV(kernel = 3, out > 64)`: a kind of layer. Its arguments are values or comparisons."""

    kind: str
    arguments: tuple[Expression, ...] = ()


@dataclass(frozen=True)
class Arrow(Tree):
    """`-> POOL`, `->{1,3} FULL`: a layer that is reached in `least` to `most` steps; `most` is None without a limit."""

    template: NodeTemplate
    least: int = 1
    most: int | None = 1


Step: TypeAlias = Field | Selector | Arrow


@dataclass(frozen=True)
class Path(Tree):
    root: str
    steps: tuple[Step, ...] = ()


# Expressions


@dataclass(frozen=True)
class Call(Tree):
    name: str
    arguments: tuple[Expression, ...] = ()
    distinct: bool = False
    star: bool = False  # count(*)


@dataclass(frozen=True)
class ArithmeticTree(Tree):
    operator: Literal["+", "-", "*", "/", "%"]
    left: Expression
    right: Expression


@dataclass(frozen=True)
class NegativeTree(Tree):
    operand: Expression


@dataclass(frozen=True)
class CompareTree(Tree):
    operator: Literal["=", "<>", "<", "<=", ">", ">="]
    left: Expression
    right: Expression


@dataclass(frozen=True)
class LikeTree(Tree):
    text: Expression
    pattern: Expression
    negated: bool = False


@dataclass(frozen=True)
class Contained(Tree):
    """`x in [1, 2]`, `m1 in parents(m2)`, `m in (select ...)`, `x in :values`"""

    item: Expression
    options: Expression
    negated: bool = False


@dataclass(frozen=True)
class Between(Tree):
    item: Expression
    low: Expression
    high: Expression
    negated: bool = False


@dataclass(frozen=True)
class IsNullTree(Tree):
    operand: Expression
    negated: bool = False


@dataclass(frozen=True)
class HasTree(Tree):
    """`m["conv*"].next has POOL("MAX")`: of several templates, one must match."""

    nodes: Expression
    templates: tuple[NodeTemplate, ...]
    quantifier: Literal["some", "all"] = "some"


@dataclass(frozen=True)
class NotTree(Tree):
    operand: Expression


@dataclass(frozen=True)
class AndTree(Tree):
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class OrTree(Tree):
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Subquery(Tree):
    query: Query


@dataclass(frozen=True)
class ExistsTree(Tree):
    query: Query


Expression: TypeAlias = (
    Value | Duration | QueryParameter | List | Path | Call | ArithmeticTree | NegativeTree | CompareTree | LikeTree
    | Contained | Between | IsNullTree | HasTree | NotTree | AndTree | OrTree | Subquery | ExistsTree
)  # fmt: skip


# Queries


@dataclass(frozen=True)
class NamedSource(Tree):
    """`from m1`: a variable for versions; `from runs r`: a table, or a query of `with`, and a variable for its rows."""

    name: str
    alias: str | None = None


@dataclass(frozen=True)
class SavedSource(Tree):
    """`from "name"`: a saved query."""

    name: str
    alias: str | None = None


@dataclass(frozen=True)
class NestedSource(Tree):
    query: Query
    alias: str | None = None


Source: TypeAlias = NamedSource | SavedSource | NestedSource


@dataclass(frozen=True)
class SelectItem(Tree):
    """A column of a result."""

    expression: Expression
    alias: str | None = None


@dataclass(frozen=True)
class AllColumns(Tree):
    pass


@dataclass(frozen=True)
class OrderKeyTree(Tree):
    expression: Expression
    descending: bool = False


Count: TypeAlias = int | QueryParameter


@dataclass(frozen=True)
class Select(Tree):
    items: tuple[SelectItem | AllColumns, ...]
    distinct: bool = False
    sources: tuple[Source, ...] = ()
    where: Expression | None = None
    group: tuple[Expression, ...] = ()
    having: Expression | None = None
    order: tuple[OrderKeyTree, ...] = ()
    limit: Count | None = None
    offset: Count | None = None


@dataclass(frozen=True)
class Slice(Tree):
    name: str
    sources: tuple[Source, ...]
    where: Expression | None
    mutate: Expression
    into: str | None = None


@dataclass(frozen=True)
class Construct(Tree):
    name: str
    sources: tuple[Source, ...]
    where: Expression | None
    mutate: Expression
    fit: bool = False
    into: str | None = None


@dataclass(frozen=True)
class ConfigSetting(Tree):
    """`with config = "file"`, `with config.epochs = 5`"""

    path: Path
    value: Expression


@dataclass(frozen=True)
class Varied(Tree):
    """`config.base_lr in [...]`; without options, `auto`."""

    path: Path
    options: Expression | None


@dataclass(frozen=True)
class KeepCall(Tree):
    """`top(5, m["loss"], 100)`"""

    call: Call


@dataclass(frozen=True)
class KeepWhere(Tree):
    """`where m["accuracy"] > 0.9 after 3 epochs`"""

    condition: Expression
    after: Count
    unit: Literal["epochs", "iterations"]


@dataclass(frozen=True)
class Evaluate(Tree):
    name: str
    sources: tuple[Source, ...]
    where: Expression | None = None
    settings: tuple[ConfigSetting, ...] = ()
    vary: tuple[Varied, ...] = ()
    using: NodeTemplate | None = None
    keep: tuple[KeepCall | KeepWhere, ...] = ()
    into: str | None = None


Body: TypeAlias = Select | Slice | Construct | Evaluate


@dataclass(frozen=True)
class Binding(Tree):
    """`with name as (query)`"""

    name: str
    query: Query


@dataclass(frozen=True)
class Query(Tree):
    body: Body
    bindings: tuple[Binding, ...] = ()


@dataclass(frozen=True)
class Statement(Tree):
    query: Query
    explain: Literal["no", "plan", "analyze"] = "no"


def walk(tree: Tree) -> Iterator[Tree]:
    """The tree and everything in it, outermost first."""
    waiting = [tree]
    while waiting:
        top = waiting.pop()
        yield top
        waiting.extend(reversed(list(top.children())))
