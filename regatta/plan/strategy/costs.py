"""What hopping, packs, groups and sharing cost, alone and combined: pure functions of what was measured.

A strategy says how many models of each kind form a pack, how many workers form a group, and whether preprocessed data
is shared. Its time is the larger of two sums: the work that each group has to do (the load), and the units that the
longest model has to go through (the chain). The hop scheduler comes within a few thousandths of that. Kinds that differ
much may need groups of different widths. The workers are then in teams, each with one width and its own kinds, and the
run ends with the last team.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from regatta.errors import UsageError
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.plan.strategy.plan_tree import Estimate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
UNIT_PAUSE_S = 0.002  # from the end of a unit to the start of the next one on the same worker
WAITING = 0.08  # share of time lost where load and chain are equal, as simulations show


@dataclass(frozen=True)
class ModelKind:
    """Models that are alike, as measured on one worker; seconds are of one epoch over all data."""

    name: str
    models: int
    epochs: int
    seconds: float
    evaluate: float = 0.0
    state_bytes: float = 0.0
    peak_bytes: float = 0.0
    packed: Mapping[int, float] = field(default_factory=dict)  # by size, seconds of a pack over those of one model
    communication: Communication | None = None  # None: a group cannot train it
    fixed: float = 0.0  # seconds of a unit to fetch the state and to save the new one
    pack_fixed: float = 0.0  # further seconds of a unit to put the model into a pack
    fetch: float = 0.0  # seconds of `fixed`, and of an evaluation, that a pack saves if it stays on its worker

    def __post_init__(self) -> None:
        if self.models < 1 or self.epochs < 1 or self.seconds <= 0:
            raise UsageError(
                f"{self.name}: {self.models} models, {self.epochs} epochs of {self.seconds} s: all must be above zero."
            )

    @cached_property
    def curve(self) -> Floats:
        """Seconds of a pack over those of one model, by size from 1: linear between the measured sizes."""
        known = {1: 1.0, **self.packed}
        sizes = sorted(known)
        return np.interp(np.arange(1, sizes[-1] + 1), sizes, [known[size] for size in sizes])


# Reading data that another process preprocessed costs these shares of the time to preprocess it and to train on it.
READ_PREPARED, READ_TRAINED = 0.02, 0.01


@dataclass(frozen=True)
class DataCosts:
    """The data of an epoch: seconds to preprocess it on one core, and to read it when another process did so."""

    prepare: float = 0.0
    read: float = 0.0
    bytes: float = 0.0
    sharable: bool = True

    @classmethod
    def shared(cls, prepare: float, train: float, bytes: float = 0.0) -> DataCosts:
        """With the usual cost of reading: blocks must be mapped, and rows in shared memory are slower to read."""
        return cls(prepare, READ_PREPARED * prepare + READ_TRAINED * train, bytes)


@dataclass(frozen=True)
class ClusterSpec:
    """The workers, what a unit costs besides training, and the number of partitions."""

    workers: int
    per_node: int = 0  # workers of a node; 0: all are on one
    memory: float = float("inf")  # bytes of a device
    unit: float = 0.0  # seconds to begin and end a unit
    bandwidth: float = float("inf")  # bytes per second, for states that hop
    cores: int = 0  # for each worker, free for preprocessing; 0: the workers preprocess themselves
    share_start: float = 0.0  # seconds to start the processes that preprocess shared data
    cache: float = float("inf")  # bytes for preprocessed data
    partitions: int = 0  # to train on; 0: as many as there are workers, or groups of them
    evals: int = 0  # partitions to evaluate on; 0 means the same

    def partition_count(self, strategy: Strategy) -> int:
        return self.partitions or self.workers // strategy.width

    @property
    def widths(self) -> list[int]:
        """The widths of groups; where several give the same number of groups, the widest."""
        return sorted({self.workers // groups for groups in range(1, self.workers + 1)})

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UsageError(f"A plan for {self.workers} workers: there must be at least one.")


def _of_kinds(field: str) -> cached_property[Floats]:
    """A property of a workload: one number of each of its kinds."""
    return cached_property(lambda work: np.array([getattr(kind, field) for kind in work.kinds], dtype=float))


@dataclass(frozen=True)
class Workload:
    """The kinds of models and their data; the numbers of all kinds as arrays."""

    kinds: tuple[ModelKind, ...]
    data: DataCosts = DataCosts()

    @property
    def models(self) -> int:
        return int(self.counts.sum())

    def only(self, kinds: Sequence[int]) -> Workload:
        return (
            self if len(kinds) == len(self.kinds) else Workload(tuple(self.kinds[index] for index in kinds), self.data)
        )

    @cached_property
    def counts(self) -> Ints:
        return np.array([kind.models for kind in self.kinds])

    epochs = _of_kinds("epochs")
    seconds = _of_kinds("seconds")
    evaluations = _of_kinds("evaluate")
    states = _of_kinds("state_bytes")
    peaks = _of_kinds("peak_bytes")
    fixed = _of_kinds("fixed")
    pack_fixed = _of_kinds("pack_fixed")
    fetches = _of_kinds("fetch")

    @cached_property
    def max_epochs(self) -> int:
        return max(kind.epochs for kind in self.kinds)

    @cached_property
    def curves(self) -> Floats:
        """`ModelKind.curve` of each kind, by size; infinite where nothing was measured."""
        longest = max(len(kind.curve) for kind in self.kinds)
        return np.array(
            [np.pad(kind.curve, (0, longest - len(kind.curve)), constant_values=np.inf) for kind in self.kinds]
        )

    def ratios(self, width: int) -> Floats:
        """By kind, communication over computation in groups of this width; zero where it was not measured."""
        if width == 1:
            return np.zeros(len(self.kinds))
        links = (kind.communication for kind in self.kinds)
        return np.array([link.ratio(width) if link else 0.0 for link in links])


@dataclass(frozen=True)
class KindTeam:
    """Workers in groups of one width, and the numbers of the kinds that only they train."""

    width: int
    groups: int
    kinds: tuple[int, ...]

    @property
    def workers(self) -> int:
        return self.width * self.groups


@dataclass(frozen=True)
class Strategy:
    """One way to train the workload. Without `teams`, all groups have one width."""

    packs: tuple[int, ...] = ()  # sizes by kind; empty: no model is packed
    width: int = 1  # of groups; the largest of all teams
    share: bool = False
    teams: tuple[KindTeam, ...] = ()

    @classmethod
    def from_teams(cls, teams: tuple[KindTeam, ...]) -> Strategy:
        return cls(width=max(team.width for team in teams), teams=teams)

    @property
    def packs_any(self) -> bool:
        return any(size > 1 for size in self.packs)

    @property
    def name(self) -> str:
        sizes = sorted({size for size in self.packs if size > 1})
        packs = [f"packs of {sizes[0]}" if len(sizes) == 1 else f"packs of {sizes[0]} to {sizes[-1]}"] if sizes else []
        widths = [str(team.width) for team in self.teams] or [str(self.width)]
        several = [f"{', '.join(widths[:-1])} and {widths[-1]}"] if len(widths) > 1 else widths
        groups = [f"groups of {several[0]}"] if self.width > 1 else []
        return " + ".join([*(packs or groups or ["hop"]), *(["share"] if self.share else [])])

    @property
    def complexity(self) -> int:
        """How much it adds to plain hopping; groups count twice, because they are not exact."""
        return self.packs_any + 2 * (self.width > 1) + self.share + bool(self.teams)

    def pack_size(self, kind: int) -> int:
        return self.packs[kind] if self.packs else 1

    def by_team(self, work: Workload, cluster: ClusterSpec) -> Iterator[tuple[Sequence[int], ClusterSpec, Strategy]]:
        """The kinds, the workers and the strategy of each team, or of all where there are no teams."""
        if not self.teams:
            yield range(len(work.kinds)), cluster, self
        for team in self.teams:
            if team.kinds:
                workers = replace(cluster, workers=team.workers)
                yield team.kinds, workers, Strategy(width=team.width, share=self.share)


@dataclass(frozen=True)
class StrategyUnits:
    """The units of a strategy, by kind: the number of packs, and the seconds of one unit of a pack."""

    groups: int
    partitions: int
    packs: Floats
    seconds: Floats  # the mean over the packs of a kind
    longest: Floats  # of the largest pack of a kind
    prepare: float  # seconds to preprocess a partition, when it is shared

    @property
    def partitions_per_group(self) -> float:
        return self.partitions / self.groups


def unit_costs(work: Workload, cluster: ClusterSpec, strategy: Strategy) -> StrategyUnits:
    groups, partitions = cluster.workers // strategy.width, cluster.partition_count(strategy)
    share = 1 / (partitions * strategy.width)  # of an epoch that one worker trains on in a unit
    sizes = np.array(strategy.packs or (1,) * len(work.kinds))
    packs = -(-work.counts // sizes)
    small, larger = np.divmod(work.counts, packs)  # `larger` packs have one member more
    longest = unit_seconds(work, cluster, strategy, small + (larger > 0), share)
    shortest = unit_seconds(work, cluster, strategy, small, share)
    mean = (longest * larger + shortest * (packs - larger)) / packs
    prepare = work.data.prepare / partitions / max(cluster.cores, 1) if strategy.share else 0.0
    return StrategyUnits(groups, partitions, packs.astype(float), mean, longest, prepare)


def pack_sizes(models: int, size: int) -> list[int]:
    """The sizes of as few packs as possible of at most this size; they differ by at most one."""
    packs = -(-models // size)
    small, larger = divmod(models, packs)
    return [small + 1] * larger + [small] * (packs - larger)


def unit_seconds(
    work: Workload, cluster: ClusterSpec, strategy: Strategy, members: Ints, share: float, slower: float = 1.0
) -> Floats:
    """By kind, the seconds of a unit of a pack with this many members; each worker trains on `share` of an epoch.

    `slower` is a factor on the training alone, for models that differ from their kind.
    """
    pack_factors = work.curves[np.arange(len(work.kinds)), members - 1]
    train = work.seconds * slower * pack_factors * (1 + work.ratios(strategy.width)) * share
    stays = cluster.workers == strategy.width  # there is only one group, so no model hops
    fixed = np.where(members > 1, work.fixed + (-work.fetches if stays else work.pack_fixed), work.fixed)
    around = cluster.unit + members * (fixed + work.states / cluster.bandwidth)
    whole = share * strategy.width  # each member of a group reads all rows of a partition, and trains on some of them
    if strategy.share:
        return train + work.data.read * whole + around
    prepare = work.data.prepare * whole
    return (np.maximum(train, prepare / cluster.cores) if cluster.cores else train + prepare) + around


def estimate(work: Workload, cluster: ClusterSpec, strategy: Strategy) -> Estimate:
    if strategy.teams:
        ends = [estimate(work.only(kinds), team, own) for kinds, team, own in strategy.by_team(work, cluster)]
        memory, moved = max(end.memory for end in ends), sum(end.moved for end in ends)
        return Estimate(max(end.seconds for end in ends), memory, moved, exact=False)
    costs = unit_costs(work, cluster, strategy)
    load, chain = load_and_chain(work, cluster, strategy)
    # Times vary, so there is some waiting where load and chain are close.
    distance = abs(math.log2(load / chain))
    can_wait = min(costs.groups, float(costs.packs.sum())) > 1
    seconds = max(load, chain) * (1 + WAITING * max(1 - distance, 0.0) * can_wait)
    start = cluster.share_start if strategy.share else 0.0
    fetched = costs.partitions + (cluster.evals or costs.groups) * (work.evaluations > 0)  # states, in an epoch
    stays = costs.groups == costs.packs.sum() == 1  # one model, or one pack, on one worker
    moved = 0.0 if stays else float((work.states * work.counts * work.epochs * fetched).sum())
    return Estimate(start + seconds, _memory(work, strategy), moved, strategy.width == 1)


def load_and_chain(work: Workload, cluster: ClusterSpec, strategy: Strategy) -> tuple[float, float]:
    """Seconds that each worker is busy if the work is spread evenly, and seconds that the longest model takes."""
    if strategy.teams:
        parts = [
            (team.workers, *load_and_chain(work.only(kinds), team, own))
            for kinds, team, own in strategy.by_team(work, cluster)
        ]
        return sum(workers * load for workers, load, _ in parts) / cluster.workers, max(chain for _, _, chain in parts)
    costs = unit_costs(work, cluster, strategy)
    evaluate = evaluations(work, cluster, strategy) * work.counts / (costs.groups * strategy.width)
    load = float(((costs.packs * costs.seconds * costs.partitions_per_group + evaluate) * work.epochs).sum())
    chain = float((costs.longest * work.epochs).max() * costs.partitions)
    if not strategy.share:
        return load, chain
    prepare = costs.prepare * costs.partitions_per_group * work.max_epochs
    if cluster.cores:  # preprocessing runs beside the training
        return max(load, prepare) + costs.prepare, max(chain, prepare) + costs.prepare
    # Otherwise the first worker that needs a partition preprocesses it.
    return load + prepare, chain + prepare * costs.groups / min(float(costs.packs.sum()), costs.groups)


def evaluations(work: Workload, cluster: ClusterSpec, strategy: Strategy) -> Floats:
    """By kind, the seconds of all evaluations of an epoch."""
    packed = np.array(strategy.packs or (1,)) > 1
    stays = packed if cluster.workers == strategy.width else np.array([False])
    saved = work.fetches * (cluster.evals or cluster.workers // strategy.width) * stays
    return np.maximum(work.evaluations - saved, 0.0)


def _memory(work: Workload, strategy: Strategy) -> float:
    return float((work.peaks * np.array(strategy.packs or (1,))).max())


def why_impossible(work: Workload, cluster: ClusterSpec, strategy: Strategy) -> str:
    """Why a strategy cannot be used; empty when it can."""
    for kinds, _, own in strategy.by_team(work, cluster):
        untried = [work.kinds[index].name for index in kinds if work.kinds[index].communication is None]
        if own.width > 1 and untried:
            return f"{untried[0]} was not tried in a group"
    for index, kind in enumerate(work.kinds):
        if strategy.pack_size(index) > len(kind.curve):
            return f"packs of {kind.name} were measured up to {len(kind.curve)}, not {strategy.pack_size(index)}"
    if strategy.width > cluster.workers:
        return f"there are {cluster.workers} workers"
    needed = _memory(work, strategy)
    if needed > cluster.memory:
        return f"needs {needed:.3g} bytes of a device that has {cluster.memory:.3g}"
    bytes_per_worker = work.data.bytes / cluster.workers
    if strategy.share and bytes_per_worker > cluster.cache:
        return f"{bytes_per_worker:.3g} bytes of preprocessed data per worker; the cache has {cluster.cache:.3g}"
    return ""
