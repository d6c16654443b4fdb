"""What hopping, packs, groups and sharing cost, each alone and together: plain functions of what was measured.

A choice says how many models of each kind go into a pack, how many workers form a group, and whether prepared data is
shared. Its time is the larger of what the groups have to do and what the longest model has to go through, because the
hop scheduler comes within a few thousandths of that. Kinds that differ much may want groups of different widths: then
the workers are in teams, each with groups of one width and kinds of its own, and the last team to end counts.
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
TIGHT = 0.08  # what is lost where the load of a worker and the chain of a model are equal, as plays show


@dataclass(frozen=True)
class ModelKind:
    """Models that are alike, as measured on one worker: seconds are of an epoch over all data."""

    name: str
    models: int
    epochs: int
    seconds: float
    evaluate: float = 0.0
    state_bytes: float = 0.0
    peak_bytes: float = 0.0
    packed: Mapping[int, float] = field(default_factory=dict)  # seconds of so many together over those of one
    communication: Communication | None = None  # None: it cannot be trained by a group
    fixed: float = 0.0  # seconds of a unit to fetch its state and to leave the new one
    pack_fixed: float = 0.0  # and, in a pack, to put it among the others
    fetch: float = 0.0  # of both, and of an evaluation, what a pack need not do that stays where it is

    def __post_init__(self) -> None:
        if self.models < 1 or self.epochs < 1 or self.seconds <= 0:
            raise UsageError(f"{self.name}: {self.models} models, {self.epochs} epochs of {self.seconds} s: none is 0.")

    @cached_property
    def curve(self) -> Floats:
        """The seconds of a pack over those of one model, by its size from 1; straight between what was measured."""
        known = {1: 1.0, **self.packed}
        sizes = sorted(known)
        return np.interp(np.arange(1, sizes[-1] + 1), sizes, [known[size] for size in sizes])


READ_PREPARED, READ_TRAINED = 0.02, 0.01  # reading what others prepared, of the time to prepare and to train on it


@dataclass(frozen=True)
class DataCosts:
    """What the models read: seconds to prepare an epoch of it on one core, and to read it prepared by others."""

    prepare: float = 0.0
    read: float = 0.0
    bytes: float = 0.0
    sharable: bool = True

    @classmethod
    def shared(cls, prepare: float, train: float, bytes: float = 0.0) -> DataCosts:
        """With the usual price of reading: to map it takes its time, and rows out of another's memory come slower."""
        return cls(prepare, READ_PREPARED * prepare + READ_TRAINED * train, bytes)


@dataclass(frozen=True)
class ClusterSpec:
    """Workers, what a unit costs beside its training, and how the data is cut."""

    workers: int
    each: int = 0  # workers of a node; 0: all on one
    memory: float = float("inf")  # bytes of a device
    unit: float = 0.0  # seconds to begin and end a unit
    bandwidth: float = float("inf")  # bytes a second, for states that hop
    cores: int = 0  # of each worker, free for preparing data; 0: the trainers' own cores do it
    share_start: float = 0.0  # seconds to start what shares
    cache: float = float("inf")  # bytes for prepared data
    partitions: int = 0  # to train on; 0: as many as there are workers, or groups of them
    evals: int = 0  # to evaluate on; the same

    def parts(self, choice: Strategy) -> int:
        return self.partitions or self.workers // choice.width

    @property
    def widths(self) -> list[int]:
        """Of groups; of those that make the same number of groups, the widest."""
        return sorted({self.workers // groups for groups in range(1, self.workers + 1)})

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UsageError(f"A plan for {self.workers} workers: there must be one at least.")


@dataclass(frozen=True)
class Workload:
    """Kinds of models and the data that they read; the figures of all kinds as arrays."""

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

    @cached_property
    def epochs(self) -> Floats:
        return np.array([kind.epochs for kind in self.kinds], dtype=float)

    @cached_property
    def seconds(self) -> Floats:
        return np.array([kind.seconds for kind in self.kinds], dtype=float)

    @cached_property
    def evaluations(self) -> Floats:
        return np.array([kind.evaluate for kind in self.kinds], dtype=float)

    @cached_property
    def states(self) -> Floats:
        return np.array([kind.state_bytes for kind in self.kinds], dtype=float)

    @cached_property
    def peaks(self) -> Floats:
        return np.array([kind.peak_bytes for kind in self.kinds], dtype=float)

    @cached_property
    def fixed(self) -> Floats:
        return np.array([kind.fixed for kind in self.kinds], dtype=float)

    @cached_property
    def pack_fixed(self) -> Floats:
        return np.array([kind.pack_fixed for kind in self.kinds], dtype=float)

    @cached_property
    def fetches(self) -> Floats:
        return np.array([kind.fetch for kind in self.kinds], dtype=float)

    @cached_property
    def longest(self) -> int:
        return max(kind.epochs for kind in self.kinds)

    def together(self, members: Ints) -> Floats:
        """Seconds of packs with so many members over those of one model."""
        found: Floats = self.curves[np.arange(len(self.kinds)), members - 1]
        return found

    @cached_property
    def curves(self) -> Floats:
        """By kind and size, as `ModelKind.curve`; infinite where nothing was measured."""
        longest = max(len(kind.curve) for kind in self.kinds)
        return np.array(
            [np.pad(kind.curve, (0, longest - len(kind.curve)), constant_values=np.inf) for kind in self.kinds]
        )

    def ratios(self, width: int) -> Floats:
        """Communication over computation in groups of this width; zero where it was not measured."""
        if width == 1:
            return np.zeros(len(self.kinds))
        links = (kind.communication for kind in self.kinds)
        return np.array([link.ratio(width) if link else 0.0 for link in links])


@dataclass(frozen=True)
class KindTeam:
    """Some of the workers, in groups of one width, and the kinds of models, by number, that only they train."""

    width: int
    groups: int
    kinds: tuple[int, ...]

    @property
    def workers(self) -> int:
        return self.width * self.groups


@dataclass(frozen=True)
class Strategy:
    """One way to do it. `packs` are the sizes by kind; empty: nobody is packed. Without teams, all are in one."""

    packs: tuple[int, ...] = ()
    width: int = 1  # the largest, where teams have several
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
        """How much there is to it beyond hopping; groups count twice, because they are not exact."""
        return self.packs_any + 2 * (self.width > 1) + self.share + bool(self.teams)

    def size(self, kind: int) -> int:
        return self.packs[kind] if self.packs else 1

    def parts(self, work: Workload, site: ClusterSpec) -> Iterator[tuple[Sequence[int], ClusterSpec, Strategy]]:
        """What goes on side by side: of each team its kinds, its workers and its way; else, the whole as it is."""
        if not self.teams:
            yield range(len(work.kinds)), site, self
        for team in self.teams:
            if team.kinds:
                yield team.kinds, replace(site, workers=team.workers), Strategy(width=team.width, share=self.share)


@dataclass(frozen=True)
class UnitCosts:
    """The units of a choice, by kind: how many packs there are, and the seconds of one unit of a pack."""

    groups: int
    parts: int  # partitions that an epoch goes through
    packs: Floats
    seconds: Floats  # the mean of the packs of a kind
    longest: Floats  # the largest of them
    prepare: float  # of a partition, when it is shared

    @property
    def each(self) -> float:
        """Partitions that a group goes through in an epoch."""
        return self.parts / self.groups


def units(work: Workload, site: ClusterSpec, choice: Strategy) -> UnitCosts:
    groups, parts = site.workers // choice.width, site.parts(choice)
    share = 1 / (parts * choice.width)  # of an epoch that one worker reads in a unit
    sizes = np.array(choice.packs or (1,) * len(work.kinds))
    packs = -(-work.counts // sizes)
    small, wide = np.divmod(work.counts, packs)  # so many packs have one more
    longest = unit_seconds(work, site, choice, small + (wide > 0), share)
    shortest = unit_seconds(work, site, choice, small, share)
    mean = (longest * wide + shortest * (packs - wide)) / packs
    prepare = work.data.prepare / parts / max(site.cores, 1) if choice.share else 0.0
    return UnitCosts(groups, parts, packs.astype(float), mean, longest, prepare)


def pack_sizes(models: int, size: int) -> list[int]:
    """As few packs of at most this size as there must be, all as large as one another or one less."""
    packs = -(-models // size)
    small, wide = divmod(models, packs)
    return [small + 1] * wide + [small] * (packs - wide)


def unit_seconds(
    work: Workload, site: ClusterSpec, choice: Strategy, members: Ints, share: float, slower: float = 1.0
) -> Floats:
    """By kind, a unit of a pack with so many members, each worker reading this share of the data.

    `slower` is a factor on the training alone, for models that are not quite as their kind.
    """
    train = work.seconds * slower * work.together(members) * (1 + work.ratios(choice.width)) * share
    stays = site.workers == choice.width  # there is nowhere to hop to
    fixed = np.where(members > 1, work.fixed + (-work.fetches if stays else work.pack_fixed), work.fixed)
    around = site.unit + members * (fixed + work.states / site.bandwidth)
    whole = share * choice.width  # each of a group has all rows of a partition, and trains on its part of them
    if choice.share:
        return train + work.data.read * whole + around
    prepare = work.data.prepare * whole
    return (np.maximum(train, prepare / site.cores) if site.cores else train + prepare) + around


def estimate(work: Workload, site: ClusterSpec, choice: Strategy) -> Estimate:
    if choice.teams:
        ends = [estimate(work.only(kinds), its, way) for kinds, its, way in choice.parts(work, site)]
        memory, moved = max(end.memory for end in ends), sum(end.moved for end in ends)
        return Estimate(max(end.seconds for end in ends), memory, moved, exact=False)
    found = units(work, site, choice)
    load, chain = load_and_chain(work, site, choice)
    start = site.share_start if choice.share else 0.0
    fetched = found.parts + (site.evals or found.groups) * (work.evaluations > 0)  # times an epoch
    stays = found.groups == found.packs.sum() == 1  # a model, or a pack, that has its worker to itself
    moved = 0.0 if stays else float((work.states * work.counts * work.epochs * fetched).sum())
    return Estimate(start + _end_of(load, chain, found), _memory(work, choice), moved, choice.width == 1)


def load_and_chain(work: Workload, site: ClusterSpec, choice: Strategy) -> tuple[float, float]:
    """Seconds that each worker is busy if all share the work evenly, and those that the longest model goes through."""
    if choice.teams:
        parts = [
            (its.workers, *load_and_chain(work.only(kinds), its, way)) for kinds, its, way in choice.parts(work, site)
        ]
        return sum(workers * load for workers, load, _ in parts) / site.workers, max(chain for _, _, chain in parts)
    found = units(work, site, choice)
    evaluate = evaluations(work, site, choice) * work.counts / (found.groups * choice.width)
    load = float(((found.packs * found.seconds * found.each + evaluate) * work.epochs).sum())
    chain = float((found.longest * work.epochs).max() * found.parts)
    return _prepared(found, site, work.longest, load, chain) if choice.share else (load, chain)


def evaluations(work: Workload, site: ClusterSpec, choice: Strategy) -> Floats:
    """By kind, the seconds of all evaluations of an epoch."""
    stays = np.array(choice.packs or (1,)) > 1 if site.workers == choice.width else np.array([False])
    saved = work.fetches * (site.evals or site.workers // choice.width) * stays
    return np.maximum(work.evaluations - saved, 0.0)


def _end_of(load: float, chain: float, found: UnitCosts) -> float:
    """The larger of both, and some waiting where they are near each other, because times stray."""
    apart = abs(math.log2(load / chain))
    waits = min(found.groups, float(found.packs.sum())) > 1
    return max(load, chain) * (1 + TIGHT * max(1 - apart, 0.0) * waits)


def _memory(work: Workload, choice: Strategy) -> float:
    return float((work.peaks * np.array(choice.packs or (1,))).max())


def _prepared(found: UnitCosts, site: ClusterSpec, epochs: int, load: float, chain: float) -> tuple[float, float]:
    """Load and chain with the preparation: beside the training on cores of its own, else by who comes first."""
    packs = float(found.packs.sum())
    once = found.prepare * found.each * epochs
    if site.cores:
        return max(load, once) + found.prepare, max(chain, once) + found.prepare
    return load + once, chain + once * found.groups / min(packs, found.groups)


def fits(work: Workload, site: ClusterSpec, choice: Strategy) -> str:
    """Why a choice cannot be; empty when it can."""
    for kinds, _, way in choice.parts(work, site):
        untried = [work.kinds[index].name for index in kinds if work.kinds[index].communication is None]
        if way.width > 1 and untried:
            return f"{untried[0]} was not tried in a group"
    for index, kind in enumerate(work.kinds):
        if choice.size(index) > len(kind.curve):
            return f"packs of {kind.name} were measured up to {len(kind.curve)}, not {choice.size(index)}"
    if choice.width > site.workers:
        return f"there are {site.workers} workers"
    needed = _memory(work, choice)
    if needed > site.memory:
        return f"needs {needed:.3g} bytes of a device that has {site.memory:.3g}"
    if choice.share and work.data.bytes / site.workers > site.cache:
        return f"{work.data.bytes / site.workers:.3g} bytes of prepared data a worker; the cache has {site.cache:.3g}"
    return ""
