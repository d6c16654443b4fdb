"""The archive pass: plans how to keep everything in a store in less space, and rewrites the store.

    report = archive(store, lineage(versions, parents), budget=2.0)

Input is a store and facts about its snapshots: which came from which, and how often each is read. The result is the
same store, with the same ids, but smaller. Budgets are kept by estimates: seconds of one thread, measured on this
machine. A tensor that is smaller as it is stays so; only an explicit budget may make a store larger.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from regatta.errors import UsageError
from regatta.store.archive.budgets import by_access, by_factor, by_snapshot, cheapest_costs
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
from regatta.store.archive.storage_graph import Floats, Scheme, StorageEdge, StorageGraph, StoragePlan, check_scheme
from regatta.store.format.encodings import ENCODINGS, encoding_named
from regatta.store.format.manifest import Manifest
from regatta.store.format.tensor_id import word_count
from regatta.store.index import MAX_CHAIN_LENGTH
from regatta.store.states.state_archive import STATE_REFERENCES, series_bases
from regatta.store.store import ParameterStore

T = TypeVar("T")
ARCHIVAL = ("raw", "zstd-planes", "pcodec", "subtract", "subtract-grouped")
DEFAULT_BUDGET = 4.0  # times the shortest reading time: longer chains save little more and take many times as long
PROGRESSIVE = ("raw", "zstd-planes", "subtract-planes")


@dataclass(frozen=True)
class RecreationCost:
    """Estimated seconds to recreate a snapshot: before, by the plan, at best, and at most (its budget)."""

    before: float
    planned: float
    cheapest: float
    budget: float


@dataclass(frozen=True)
class ArchiveReport:
    """The result of an archive pass, or its plan in a dry run, where `bytes_after` is None."""

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
        """The share of bytes saved, or to be saved."""
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
    """Rewrite the store in less space, and report the savings; a dry run only plans.

    `bases` are the snapshots that each snapshot may be a delta to (see `lineage`). The default is the previous one of
    the same training, or the one that was stored before it.
    `budget` is a factor of the cheapest recreation of each snapshot, or seconds by snapshot; infinity uses the least
    space. The default is DEFAULT_BUDGET, except for snapshots that take longer now: they may keep their time. With
    `reads`, how often each snapshot is read, the factor holds for the mean of all reads.
    `progressive` uses only encodings whose leading planes can be read alone. With `remote_planes`, only that number of
    leading planes must stay here; the others may move to the store's remote if the budget allows it.
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
    members = {
        one: [entry.id for entry in manifest.tensors.values() if entry.id in matrices]
        for one, manifest in manifests.items()
    }
    graph = StorageGraph(candidate_edges(matrices, pairs, estimates, choice), members)
    before = _current_plan(graph, matrices)
    budgets = _budgets(graph, scheme, _by_id(store, budget), _by_id(store, reads), before)
    found = plan(graph, algorithm, scheme, budgets, hops=MAX_CHAIN_LENGTH)
    options = {str(node): edge.option for node, edge in found.edges().items() if isinstance(edge.option, StorageOption)}
    changes = {tensor: option for tensor, option in options.items() if option != matrices[tensor].option}
    moved, only_smaller = len(changes), budget is None or budget == math.inf
    if changes and not dry_run:
        wanted = {tensor: (option.encoding, option.base) for tensor, option in changes.items()}
        moved = store.reencode(wanted, only_smaller=only_smaller and remote_planes is None)
        remote = {tensor: option.planes for tensor, option in changes.items() if option.planes is not None}
        for planes in sorted(set(remote.values())):
            store.offload([], planes, tensors=[tensor for tensor, kept in remote.items() if kept == planes])
    limits = [math.inf] * len(graph.snapshots) if budgets is None else budgets.tolist()
    columns = (before.recreation(scheme), found.recreation(scheme), cheapest_costs(graph, scheme), limits)
    costs = (RecreationCost(*map(float, row)) for row in zip(*columns, strict=True))
    return ArchiveReport(
        tensors=len(matrices),
        moved=moved,
        bytes_raw=sum(one.count * one.dtype.width_bytes for one in matrices.values()),
        bytes_before=sum(one.stored - one.remote for one in matrices.values()),
        bytes_planned=math.fsum(_planned(edge, matrices) for edge in found.edges().values()),
        bytes_after=None if dry_run else sum(one.stored_bytes - one.remote_bytes for one in store.entries()),
        deepest=int(found.hops.max(initial=0)),
        encodings=Counter(ENCODINGS[option.encoding].name for option in options.values()),
        snapshots=dict(zip(graph.snapshots, costs, strict=True)),
    )


def _matrices(store: ParameterStore) -> dict[str, Matrix]:
    """Every tensor of the store, also those that no snapshot needs: others may be deltas to them."""
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


def _declared(
    store: ParameterStore, manifests: Mapping[str, Manifest], bases: Mapping[str, Iterable[str]] | None
) -> dict[str, list[str]]:
    if bases is None:
        known = series_bases(store.references(STATE_REFERENCES))
        return {snapshot: known.get(snapshot, [before]) for before, snapshot in pairwise(manifests)} | known
    return {_id(store, one): [_id(store, base) for base in several] for one, several in bases.items()}


def _id(store: ParameterStore, name: str) -> str:
    """The id of a snapshot that is given by a reference or by a prefix of its id."""
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
    before: StoragePlan,
) -> Floats | None:
    if isinstance(budget, Mapping):
        if reads is not None:
            raise UsageError(
                "`reads` cannot be combined with budgets for single snapshots.",
                hint="Give one factor as the budget, or leave out `reads`.",
            )
        return by_snapshot(graph, budget)
    if budget is None or budget == math.inf:
        if reads is not None:
            raise UsageError("`reads` needs a budget.", hint="Give a factor.")
        if budget is not None:
            return None
        return np.maximum(by_factor(graph, scheme, DEFAULT_BUDGET), before.recreation(scheme))
    return by_factor(graph, scheme, budget) if reads is None else by_access(graph, scheme, budget, reads)


def _planned(edge: StorageEdge, matrices: Mapping[str, Matrix]) -> float:
    matrix = matrices[str(edge.target)]
    return matrix.stored - matrix.remote if edge.option == matrix.option else edge.storage


def _current_plan(graph: StorageGraph, matrices: Mapping[str, Matrix]) -> StoragePlan:
    """The present state as a plan: every tensor has the edge by which it is stored."""
    chosen = [-1] * len(graph)
    for number, edge in enumerate(graph.edges):
        if edge.option == matrices[str(edge.target)].option:
            chosen[int(graph.targets[number])] = number
    return StoragePlan(graph, tuple(chosen))
