"""The operators of slice and construct: versions of what they make, and what they would make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regatta.dql.bound import BoundSelect
from regatta.dql.networks.bound_networks import BoundDerivation, BoundSlice, inner_derivation
from regatta.dql.networks.commit_models import commit_models, summary
from regatta.dql.networks.derived_models import DerivedModel, derive
from regatta.dql.run import QueryContext, derived_sources, make_versions, plan

if TYPE_CHECKING:
    from regatta.repo import Version


def derived_models(context: QueryContext, query: BoundDerivation) -> list[DerivedModel]:
    """The models that a query makes. Nothing is written, unless an `evaluate` inside of it must run first."""

    def select(models: BoundSelect) -> Sequence[Version]:
        return sorted(make_versions(context, models), key=lambda version: version.key)

    return derive(
        context.repo, query, select, text=context.text, seed=context.seed, max_models=context.max_models
    )  # fmt: skip


def make_derived(context: QueryContext, query: BoundDerivation) -> list[Version]:
    """Make versions of the models, after all of them were checked."""
    context.repo.check_writable()
    models = derived_models(context, query)
    known = sum(context.repo.catalog.has(model.id) for model in models)
    if known:
        context.say(f"{known:,} of {len(models):,} models are versions already")
    return commit_models(context.repo, models, context.text, context.parameters)


def plan_derived(context: QueryContext, query: BoundDerivation, analyze: bool) -> Mapping[str, Any]:
    """The models that would be made, and the select of their sources.

    If that reads from a query which makes versions, the models are not known before it has run.
    """
    kind = "slice" if isinstance(query, BoundSlice) else "construct"
    inner = inner_derivation(query.models.sources)
    source = plan(context, query.models if inner is None else inner, analyze)
    if must_run_first(query.models):
        return {"kind": kind, "from": source}
    models = derived_models(context, query)
    shown = [{name: value for name, value in row.items() if value not in ([], 0)} for row in summary(models)]
    return {"kind": kind, "models_to_make": len(models), "model": shown, "from": source}


def must_run_first(models: BoundSelect) -> bool:
    """Whether a query in this one must make versions before its models are known: an explanation must not."""
    inner = inner_derivation(models.sources)
    return bool(derived_sources(models)) if inner is None else must_run_first(inner.models)
