"""Paths: m.name, m.metric.loss.best, m.param.lr, m["conv*"].next -> POOL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from regatta.dql import bound, tree
from regatta.dql.bind.types import NAMES
from regatta.dql.bound import (
    Attribute,
    ColumnValue,
    Expression,
    GitAttribute,
    Hyperparameter,
    Metadata,
    Metric,
    Variable,
)
from regatta.dql.parse import QueryError
from regatta.dql.schema import GIT_ATTRIBUTES, RUN_ATTRIBUTES, TABLES, VERSION_ATTRIBUTES, QueryTable
from regatta.dql.templates import bind_test
from regatta.errors import nearest

if TYPE_CHECKING:
    from regatta.dql.bind.binder import Binder

MAX_STEPS = 100  # of one arrow
MAX_PATH = 20  # steps of a path
_LINEAGE = ("parents", "children", "ancestors", "descendants")
_BEST = {"min": "min", "max": "max", "lowest": "min", "highest": "max"}


def bind_path(binder: Binder, path: tree.Path) -> Expression:
    """The value that a path leads to."""
    found: Expression | None = binder.find_variable(path.root)
    if found is None:
        found = binder.aliases.get(path.root)
    steps = list(path.steps)
    if found is None and binder.implicit is not None and path.root in (*VERSION_ATTRIBUTES, *MEMBERS, *_LINEAGE):
        found, steps = binder.implicit, [tree.Field(path.root, span=path.span), *steps]
    if found is None:
        raise _unknown_variable(binder, path)
    while steps:
        found = _next(binder, found, steps)
    return found


def _unknown_variable(binder: Binder, path: tree.Path) -> QueryError:
    known = binder.visible()
    candidates = nearest(path.root, [*known, *binder.aliases])
    hint = None
    models = [name for name in known if getattr(binder.find_variable(name), "type", None) == "model"]
    if models and not candidates and not path.steps:  # the name of its model may be missing
        prefix = "" if binder.implicit is not None else f"{models[0]}."
        candidates = tuple(f"{prefix}{name}" for name in _nearest_attributes(binder, path.root))
    if not candidates:
        hint = f"There {'are' if len(known) > 1 else 'is'} {', '.join(known)}." if known else "Name it after from."
    if not path.steps and not candidates:
        hint = "\n".join(filter(None, (f'A text stands in quotes: "{path.root:.60}".', hint)))
    return binder.error(f"There is no variable {path.root!r:.60}.", path.span, candidates=candidates, hint=hint)


def _next(binder: Binder, found: Expression, steps: list[tree.Step]) -> Expression:
    step = steps.pop(0)
    if isinstance(found, bound.LayerPath):
        if len(found.steps) == MAX_PATH:
            raise binder.error(f"A path has at most {MAX_PATH} steps.", step.span, hint="Use an arrow: ->{1,50} POOL")
        return bound.LayerPath(found.model, found.selector, (*found.steps, _step(binder, step)), span=found.span)
    if isinstance(found, Variable) and found.type == "null":
        return _column(binder, found, step)
    if found.type != "model":
        raise binder.error(f"This is {NAMES[found.type]}, which has no parts.", step.span)
    if isinstance(step, tree.Selector):
        return bound.LayerPath(found, binder.bind_selector(step), span=step.span)
    if isinstance(step, tree.Arrow):
        raise binder.error("An arrow leads from layers.", step.span, hint='For example: m["conv1"] -> POOL')
    return _member(binder, found, step, steps)


def _member(binder: Binder, model: Expression, step: tree.Field, steps: list[tree.Step]) -> Expression:
    """An attribute of a model, and what follows it."""
    if step.arguments is not None:
        raise binder.error(f"{step.name!r:.60} takes no arguments here.", step.span)
    if step.name in VERSION_ATTRIBUTES:
        return Attribute(model, step.name, VERSION_ATTRIBUTES[step.name].type, span=step.span)
    if step.name in _LINEAGE:
        return bound.Lineage(step.name, model, span=step.span)  # type: ignore[arg-type]
    if step.name in MEMBERS:
        return MEMBERS[step.name](binder, model, step, steps)
    candidates = _nearest_attributes(binder, step.name)
    listed = sorted({*VERSION_ATTRIBUTES, *_LINEAGE, *MEMBERS} - {"created", "config", "hyperparameter"})
    hint = None if candidates else f"It has {', '.join(listed)}."
    raise binder.error(f"A model has no attribute {step.name!r:.60}.", step.span, candidates=candidates, hint=hint)


def _nearest_attributes(binder: Binder, name: str) -> tuple[str, ...]:
    """Attributes of a model that may be meant: those with a similar name, hyperparameters and metrics, too."""
    if name in (*VERSION_ATTRIBUTES, *MEMBERS):
        return (name,)
    found = [*nearest(name, (*VERSION_ATTRIBUTES, *_LINEAGE, *MEMBERS))]
    for prefix, known in (("param", binder.known.hyperparameters), ("metric", binder.known.metrics)):
        if known is not None and name in known:
            found.insert(0, f"{prefix}.{name}")
        else:
            found += [f"{prefix}.{each}" for each in nearest(name, known or ())]
    return tuple(found)


def _metric(binder: Binder, model: Expression, step: tree.Field, steps: list[tree.Step]) -> Expression:
    name = _name_after(binder, step, steps, "metric", binder.known.metrics)
    which, at = "last", None
    if steps and isinstance(steps[0], tree.Field):
        which, at = _which(binder, name.name, steps.pop(0))
    return Metric(model, name.name, which, at, span=name.span)  # type: ignore[arg-type]


def _which(binder: Binder, metric: str, step: Any) -> tuple[str, Expression | None]:
    from regatta.repo.intake.metrics import usual_mode

    if step.name == "at":
        if step.arguments is None or len(step.arguments) != 1:
            raise binder.error("at takes the number of a step.", step.span, hint="For example: m.metric.loss.at(10)")
        return "at", binder.bind_typed(step.arguments[0], "number", "The step")
    if step.arguments is not None:
        raise binder.error(f"{step.name!r:.60} takes no arguments.", step.span)
    if step.name == "last":
        return "last", None
    if step.name == "best":
        return usual_mode(metric), None
    if step.name in _BEST:
        return _BEST[step.name], None
    raise binder.error(
        f"A metric has no {step.name!r:.60}.", step.span, candidates=nearest(step.name, ("last", "best", "min", "max")),
        hint='It has last, best, min, max and at(STEP). Names with dots are in quotes: m.metric."a.b"',
    )  # fmt: skip


def _parameter(binder: Binder, model: Expression, step: tree.Field, steps: list[tree.Step]) -> Expression:
    name = _name_after(binder, step, steps, "hyperparameter", binder.known.hyperparameters)
    return Hyperparameter(model, name.name, span=name.span)


def _metadata(binder: Binder, model: Expression, step: tree.Field, steps: list[tree.Step]) -> Expression:
    first = _name_after(binder, step, steps, "key", None)
    keys = [first.name]
    while steps and isinstance(steps[0], tree.Field) and steps[0].arguments is None:
        keys.append(steps.pop(0).name)  # type: ignore[union-attr]
    return Metadata(model, tuple(keys), span=first.span)


def _run(binder: Binder, model: Expression, step: tree.Field, steps: list[tree.Step]) -> Expression:
    if not steps:
        return bound.RunAttribute(model, "name", "text", span=step.span)
    name = _name_after(binder, step, steps, "attribute", RUN_ATTRIBUTES, "A run has")
    return bound.RunAttribute(model, name.name, RUN_ATTRIBUTES[name.name].type, span=name.span)


def _git(binder: Binder, model: Expression, step: tree.Field, steps: list[tree.Step]) -> Expression:
    name = _name_after(binder, step, steps, "attribute", GIT_ATTRIBUTES, "A state of git has")
    return GitAttribute(model, name.name, GIT_ATTRIBUTES[name.name], span=name.span)  # type: ignore[arg-type]


def _tags(binder: Binder, model: Expression, step: tree.Field, steps: list[tree.Step]) -> Expression:
    return bound.Tags(model, span=step.span)


_Member = Callable[["Binder", Expression, tree.Field, list[tree.Step]], Expression]
MEMBERS: Mapping[str, _Member] = {
    "metric": _metric, "param": _parameter, "hyperparameter": _parameter, "meta": _metadata, "run": _run,
    "git": _git, "tags": _tags,
}  # fmt: skip


def _name_after(
    binder: Binder,
    step: tree.Field,
    steps: list[tree.Step],
    what: str,
    known: Iterable[str] | None,
    owner: str = "No version has",
) -> tree.Field:
    """The name that follows .metric, .param and the like."""
    if not steps or not isinstance(steps[0], tree.Field) or steps[0].arguments is not None:
        raise binder.error(
            f"The name of a {what} is expected after {step.name}.", step.span, hint=f"For example: m.{step.name}.NAME"
        )
    name = steps.pop(0)
    assert isinstance(name, tree.Field)
    if known is not None and name.name not in known:
        negation = "the" if owner == "No version has" else "no"
        listed = sorted(known)[:12]
        candidates = nearest(name.name, known)
        hint = f"There are: {', '.join(listed)}" if listed and not candidates else None
        raise binder.error(f"{owner} {negation} {what} {name.name!r:.60}.", name.span, candidates=candidates, hint=hint)
    return name


def _step(binder: Binder, step: tree.Step) -> bound.PathStep:
    match step:
        case tree.Field("next" | "prev" as name, None):
            return bound.PathStep(name == "next", span=step.span)
        case tree.Field(name):
            hint = 'Layers have next and prev, and are tested with has: m["conv1"] has CONV(kernel = 3)'
            raise binder.error(
                f"Layers have no {name!r:.60}.", step.span, candidates=nearest(name, ("next", "prev")), hint=hint
            )
        case tree.Arrow(template, least, most):
            if max(least, most or 0) > MAX_STEPS or most == 0:
                raise binder.error(f"An arrow leads over 1 to {MAX_STEPS} steps.", step.span)
            return bound.PathStep(True, least, most, bind_test(template, binder.text), span=step.span)
    raise binder.error("These are layers already.", step.span, hint='For example: m["conv1"].next has POOL')


def _column(binder: Binder, variable: Variable, step: tree.Step) -> Expression:
    """A column of a table or of a nested query."""
    source = binder.source_of(variable)
    if not isinstance(step, tree.Field) or step.arguments is not None:
        raise binder.error(f"{variable.name!r:.60} is a row, and not a model.", step.span)
    if isinstance(source, bound.TableSource):
        table: QueryTable = TABLES[source.table]
        types = {name: column.type for name, column in table.columns.items()}
        what = f"The table {source.table}"
    else:
        assert isinstance(source, bound.QuerySource)
        types = {item.name: item.expression.type for item in source.query.items}
        what = "The query"
    if step.name not in types:
        candidates = nearest(step.name, types)
        raise binder.error(
            f"{what} has no column {step.name!r:.60}.", step.span, candidates=candidates,
            hint=None if candidates else f"It has {', '.join(types)}.",
        )  # fmt: skip
    return ColumnValue(variable, step.name, types[step.name], span=step.span)
