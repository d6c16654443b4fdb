"""The archive pass: looks at all that a store holds, plans how to hold it in less, and has it rewritten.

    report = archive(store, lineage(versions, parents), budget=2.0)

Enter: a store and what is known of its snapshots (which came from which, how often each is read). Leaves: the same
store, with the same ids, smaller. The budget is kept by the estimates: seconds of one thread, measured on this machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from regatta.errors import UsageError
from regatta.store.archive.budgets import (
    by_access,
    by_factor,
    by_snapshot,
    cheapest_costs,
)
from regatta.store.archive.candidates import (
    EdgeEstimates,
    EncodingChoice,
    Matrix,
    Samples,
    StorageOption,
    candidate_edges,
    declared_pairs,
    near_pairs,
)
from regatta.store.archive.planner import plan
from regatta.store.archive.speeds import Speeds, measured_speeds
from regatta.store.archive.storage_graph import (
    Floats,
    Scheme,
    StorageEdge,
    StorageGraph,
    StoragePlan,
    check_scheme,
)
from regatta.store.format.encodings import ENCODINGS, encoding_named
from regatta.store.format.manifest import Manifest
from regatta.store.format.tensor_id import word_count
from regatta.store.index import MAX_CHAIN_LENGTH
from regatta.store.states.state_archive import STATE_REFERENCES, series_bases
from regatta.store.store import ParameterStore

T = TypeVar("T")
ARCHIVAL = ("raw", "zstd-planes", "pcodec", "subtract", "subtract-grouped")
PROGRESSIVE = ("raw", "zstd-planes", "subtract-planes")


@dataclass(frozen=True)
class RecreationCost:
    """Seconds that recreating a snapshot takes, by the estimates: as it was, by the plan, at best, at most."""

    before: float
    planned: float
    cheapest: float
    budget: float


@dataclass(frozen=True)
class ArchiveReport:
    """What an archive pass did, or would do in a dry run. `bytes_after` is None in a dry run."""

    tensors: int
    moved: int
    bytes_raw: int
    bytes_before: int
    bytes_planned: float
    bytes_after: int | None
    deepest: int
    encodings: Mapping[str, int]
    snapshots: Mapping[str, RecreationCost]

    @property
    def saved(self) -> float:
        """The part of the bytes that is gone, or would be."""
        after = self.bytes_planned if self.bytes_after is None else self.bytes_after
        return 1 - after / self.bytes_before if self.bytes_before else 0.0


def archive(
    store: ParameterStore,
    bases: Mapping[str, Iterable[str]] | None = None,
    *,
    budget: float | Mapping[str, float] | None = None,
    reads: Mapping[str, float] | None = None,
    scheme: Scheme = "independent",
    algorithm: str = "pas-mt",
    progressive: bool = False,
    remote_planes: int | None = None,
    speeds: Speeds | None = None,
    dry_run: bool = False,
) -> ArchiveReport:
    """Store everything in less room, and say how much less; a dry run only says it.

    `bases` are the snapshots that each may be a delta to (see `lineage`); unless told, the one before in the same
    training, or the one that was stored before.
    `budget` is a factor of the cheapest recreation of each snapshot, or seconds by snapshot; without one, as little as
    possible is stored. With `reads`, how often each snapshot is read, the factor holds for the mean of all reads.
    `progressive` takes only encodings whose leading planes can be read by themselves; with `remote_planes`, all but so
    many leading planes may go to the store's remote where the budget allows it.
    """
    check_scheme(scheme)
    if remote_planes is not None and store.remote is None:
        raise UsageError("The store has no remote to keep planes at.", place=str(store.path), hint="Set one first.")
    matrices, manifests = _matrices(store), {one: store.manifest(one) for one in store.snapshots()}
    names = PROGRESSIVE if progressive or remote_planes is not None else ARCHIVAL
    choice = EncodingChoice([encoding_named(name) for name in names], remote_planes)
    estimates = EdgeEstimates(matrices, Samples(matrices, store.words), speeds or measured_speeds())
    pairs = declared_pairs(matrices, manifests, _declared(store, manifests, bases))
    pairs += near_pairs(matrices, estimates.samples, pairs)
    members = {one: _members(manifest, matrices) for one, manifest in manifests.items()}
    graph = StorageGraph(candidate_edges(matrices, pairs, estimates, choice), members)
    budgets = _budgets(graph, scheme, _by_id(store, budget), _by_id(store, reads))
    found = plan(graph, algorithm, scheme, budgets, hops=MAX_CHAIN_LENGTH)
    ways = _changes(found, matrices)
    if not dry_run:
        _carry_out(store, ways)
    return _report(store, found, matrices, ways, scheme, budgets, dry_run)


def _matrices(store: ParameterStore) -> dict[str, Matrix]:
    """Every tensor of the store, also those that no snapshot needs: they may be deltas to others."""
    return {
        entry.tensor: Matrix(
            entry.tensor,
            entry.dtype,
            word_count(entry.dtype, entry.shape),
            StorageOption(entry.encoding, entry.base),
            entry.stored_bytes,
            entry.remote_bytes,
        )
        for entry in store.entries()
    }


def _members(manifest: Manifest, matrices: Mapping[str, Matrix]) -> list[str]:
    return [member.id for member in manifest.tensors.values() if member.id in matrices]


def _declared(
    store: ParameterStore, manifests: Mapping[str, Manifest], bases: Mapping[str, Iterable[str]] | None
) -> dict[str, list[str]]:
    if bases is None:
        known = series_bases(store.references(STATE_REFERENCES))
        return {snapshot: known.get(snapshot, [before]) for before, snapshot in pairwise(manifests)} | known
    return {_id(store, one): [_id(store, base) for base in several] for one, several in bases.items()}


def _id(store: ParameterStore, name: str) -> str:
    """The id of a snapshot that is given by a reference or by the beginning of its id."""
    return store.references(name).get(name) or store.resolve(name, "snapshots")


def _by_id(store: ParameterStore, given: T) -> T | dict[str, float]:
    if not isinstance(given, Mapping):
        return given
    return {_id(store, name): value for name, value in given.items()}


def _budgets(
    graph: StorageGraph,
    scheme: Scheme,
    budget: float | Mapping[str, float] | None,
    reads: Mapping[str, float] | None,
) -> Floats | None:
    if isinstance(budget, Mapping):
        if reads is not None:
            raise UsageError(
                "Budgets for single snapshots leave nothing for `reads` to decide.",
                hint="Give one factor as the budget, or leave out `reads`.",
            )
        return by_snapshot(graph, budget)
    if budget is None:
        if reads is not None:
            raise UsageError("How often snapshots are read matters only under a budget.", hint="Give a factor.")
        return None
    return by_factor(graph, scheme, budget) if reads is None else by_access(graph, scheme, budget, reads)


def _changes(found: StoragePlan, matrices: Mapping[str, Matrix]) -> dict[str, StorageOption]:
    """What is to be stored in another way than now, bases first."""
    return {tensor: way for tensor, way in _ways(found).items() if way != matrices[tensor].way}


def _ways(found: StoragePlan) -> dict[str, StorageOption]:
    return {
        str(tensor): edge.option for tensor, edge in found.edges().items() if isinstance(edge.option, StorageOption)
    }


def _carry_out(store: ParameterStore, ways: Mapping[str, StorageOption]) -> None:
    if ways:
        store.reencode({tensor: (way.encoding, way.base) for tensor, way in ways.items()})
    remote = {tensor: way.planes for tensor, way in ways.items() if way.planes is not None}
    for planes in sorted(set(remote.values())):
        store.offload([], planes, tensors=[tensor for tensor, kept in remote.items() if kept == planes])


def _report(
    store: ParameterStore,
    found: StoragePlan,
    matrices: Mapping[str, Matrix],
    ways: Mapping[str, StorageOption],
    scheme: Scheme,
    budgets: Floats | None,
    dry_run: bool,
) -> ArchiveReport:
    graph = found.graph
    limits = [math.inf] * len(graph.snapshots) if budgets is None else budgets.tolist()
    before = _as_it_was(graph, matrices)
    columns = (before.recreation(scheme), found.recreation(scheme), cheapest_costs(graph, scheme), limits)
    costs = (RecreationCost(*map(float, row)) for row in zip(*columns, strict=True))
    return ArchiveReport(
        tensors=len(matrices),
        moved=len(ways),
        bytes_raw=sum(one.count * one.dtype.width_bytes for one in matrices.values()),
        bytes_before=sum(one.stored - one.remote for one in matrices.values()),
        bytes_planned=math.fsum(_planned(edge, matrices) for edge in found.edges().values()),
        bytes_after=None if dry_run else sum(one.stored_bytes - one.remote_bytes for one in store.entries()),
        deepest=int(found.hops.max(initial=0)),
        encodings=Counter(ENCODINGS[way.encoding].name for way in _ways(found).values()),
        snapshots=dict(zip(graph.snapshots, costs, strict=True)),
    )


def _planned(edge: StorageEdge, matrices: Mapping[str, Matrix]) -> float:
    matrix = matrices[str(edge.target)]
    return matrix.stored - matrix.remote if edge.option == matrix.way else edge.storage


def _as_it_was(graph: StorageGraph, matrices: Mapping[str, Matrix]) -> StoragePlan:
    """The plan that the store has followed until now: every tensor has the edge of how it is stored."""
    chosen = [-1] * len(graph)
    for number, edge in enumerate(graph.edges):
        if edge.option == matrices[str(edge.target)].way:
            chosen[int(graph.targets[number])] = number
    return StoragePlan(graph, tuple(chosen))
