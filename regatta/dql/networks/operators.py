"""The operators of slice and construct: versions of what they make, and what they would make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regatta.dql.bound import BoundSelect
from regatta.dql.networks.bound_networks import BoundDerivation
from regatta.dql.networks.commit_models import commit_models, summary
from regatta.dql.networks.derived_models import DerivedModel, derive
from regatta.dql.run import QueryContext, make_versions, plan

if TYPE_CHECKING:
    from regatta.repo import Version


def derived_models(context: QueryContext, query: BoundDerivation) -> list[DerivedModel]:
    """The models that a query makes. Nothing is written, unless an `evaluate` inside of it must run first."""

    def select(models: BoundSelect) -> Sequence[Version]:
        return sorted(make_versions(context, models), key=lambda version: version.key)

    return derive(context.repo, query, select, text=context.text, max_models=context.max_models)


def make_derived(context: QueryContext, query: BoundDerivation) -> list[Version]:
    """Make versions of the models, after all of them were checked."""
    context.repo.check_writable()
    return commit_models(context.repo, derived_models(context, query), context.text)


def plan_derived(context: QueryContext, query: BoundDerivation, analyze: bool) -> Mapping[str, Any]:
    """The select of the sources, and the models that would be made."""
    models = derived_models(context, query)
    sources = plan(context, query.models, analyze)
    return {"makes": len(models), "models": summary(models), "from": sources}
