"""References as people write them: a version, and one snapshot of its weights.

name, name@3, a tag, the beginning of an id         the last snapshot of that version
name@3:7                                            the snapshot after epoch 7
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regatta.errors import NotFoundError
from regatta.repo.catalog.records import SnapshotRecord, Version
from regatta.repo.snapshots import choose_snapshot

if TYPE_CHECKING:
    from regatta.repo.repo import Repo

_SNAPSHOT = re.compile(r"(.+):(-?[0-9]{1,15}|[0-9a-f]{4,64})", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class ResolvedReference:
    """A version and a snapshot, which is None if it has no weights; `chosen` if the reference named the snapshot."""

    version: Version
    snapshot: SnapshotRecord | None
    chosen: bool = False

    @property
    def label(self) -> str:
        """The reference to show."""
        if not self.chosen or self.snapshot is None:
            return self.version.reference
        moment = self.snapshot.position if self.snapshot.epoch is None else self.snapshot.epoch
        return f"{self.version.reference}:{moment}"

    @property
    def epoch(self) -> int | None:
        return self.snapshot.epoch if self.chosen and self.snapshot is not None else None


def split_reference(
    repo: Repo, reference: str | Version, snapshot: int | str | None = None
) -> tuple[Version, int | str | None]:
    """The version of a reference, and the snapshot to choose: `snapshot`, the one that the reference names, or None."""
    try:
        return repo.resolve(reference), snapshot
    except NotFoundError:
        match = _SNAPSHOT.fullmatch(reference) if isinstance(reference, str) and snapshot is None else None
        if match is None:
            raise
        return repo.version(match[1]), int(match[2]) if re.fullmatch(r"-?[0-9]{1,15}", match[2]) else match[2]


def resolve_reference(repo: Repo, reference: str | Version, snapshot: int | str | None = None) -> ResolvedReference:
    """The version of a reference, and its snapshot: `snapshot`, or the one that the reference names, or the last."""
    version, snapshot = split_reference(repo, reference, snapshot)
    if not version.snapshots and snapshot is None:
        return ResolvedReference(version, None)
    return ResolvedReference(version, choose_snapshot(repo, version, snapshot), snapshot is not None)
