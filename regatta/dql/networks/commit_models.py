"""Makes versions of derived models: the source is the parent, and the query is kept as metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regatta.dql.networks.derived_models import DerivedModel
from regatta.errors import ConflictError, RegattaError

if TYPE_CHECKING:
    from regatta.repo import Repo, Version

MAX_MESSAGE_CHARACTERS = 300


def commit_models(
    repo: Repo, models: Iterable[DerivedModel], text: str, parameters: Mapping[str, Any] | None = None
) -> list[Version]:
    """A version of each model, in their order. Models that are versions already are not made again.

    If this is interrupted, the same query makes the rest.
    """
    listed = list(models)
    names, tags = {model.name for model in listed}, {tag.name for tag in repo.tags()}
    if names & tags:
        name = min(names & tags)
        raise ConflictError(
            f"There is a tag {name!r:.200}; a version cannot have the same name.", hint='Name them: into "name".'
        )
    return [
        _existing(repo, model) or _commit(repo, model, metadata_of(model, text, parameters or {})) for model in listed
    ]


def _existing(repo: Repo, model: DerivedModel) -> Version | None:
    return repo.catalog.of_id(model.id) if repo.catalog.has(model.id) else None


def _commit(repo: Repo, model: DerivedModel, metadata: Mapping[str, Any]) -> Version:
    try:
        return repo.commit(
            model.name,
            model.weights() if model.has_weights else None,
            network=model.network,
            metadata=metadata,
            parents=[model.source],
            message=_message(model),
            ident=model.id,
        )
    except RegattaError:
        made = _existing(repo, model)  # by another process that runs the same query
        if made is None:
            raise
        return made


def metadata_of(model: DerivedModel, text: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a version keeps of how it was made."""
    kept = {"query": text.strip(), "changes": list(model.changes), "seed": model.seed, "new": list(model.new)}
    return {**kept, "parameters": dict(parameters)} if parameters else kept


def summary(models: Iterable[DerivedModel]) -> list[dict[str, Any]]:
    """What would be made: a row for each model."""
    return [
        {
            "name": model.name,
            "parent": model.source.reference,
            "changes": list(model.changes),
            "parameters": model.parameters,
            "kept": len(model.kept),
            "new": list(model.new),
            "dropped": list(model.dropped),
        }
        for model in models
    ]


def made_rows(repo: Repo, versions: Sequence[Version]) -> list[dict[str, Any]]:
    """What was made: a row for each version, with its parent and what is different."""
    parents = {link.derived: repo.catalog.of_id(link.base).reference for link in repo.links(versions)}
    return [
        {
            "version": version.reference,
            "parent": parents.get(version.id, ""),
            "changes": "; ".join(version.metadata.get("changes", ())),
            "parameters": version.parameters,
            "new": ", ".join(version.metadata.get("new", ())),
        }
        for version in versions
    ]


def _message(model: DerivedModel) -> str:
    text = "; ".join(model.changes)
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else f"{text[: MAX_MESSAGE_CHARACTERS - 3]}..."
