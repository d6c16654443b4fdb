"""What hopping, packs, groups and sharing cost, each alone and together: plain functions of what was measured.

A choice says how many models of each kind go into a pack, how many workers form a group, and whether prepared data is
shared. Its time is the larger of what the groups have to do and what the longest model has to go through, because the
hop scheduler comes within a few thousandths of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from regatta.errors import UsageError
from regatta.plan.groups import Communication
from regatta.plan.tree import Estimate

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
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

    def __post_init__(self) -> None:
        if self.models < 1 or self.epochs < 1 or self.seconds <= 0:
            raise UsageError(f"{self.name}: {self.models} models, {self.epochs} epochs of {self.seconds} s: none is 0.")

    @cached_property
    def curve(self) -> Floats:
        """The seconds of a pack over those of one model, by its size from 1; straight between what was measured."""
        known = {1: 1.0, **self.packed}
        sizes = sorted(known)
        return np.interp(np.arange(1, sizes[-1] + 1), sizes, [known[size] for size in sizes])


@dataclass(frozen=True)
class Data:
    """What the models read: seconds to prepare an epoch of it on one core, and to read it prepared by others."""

    prepare: float = 0.0
    read: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True)
class Site:
    """Workers, and what a unit costs beside its training."""

    workers: int
    each: int = 0  # workers of a node; 0: all on one
    memory: float = float("inf")  # bytes of a device
    unit: float = 0.0  # seconds to begin and end a unit
    bandwidth: float = float("inf")  # bytes a second, for states that hop
    cores: int = 0  # of each worker, free for preparing data; 0: the trainers' own cores do it
    share_start: float = 0.0  # seconds to start what shares
    cache: float = float("inf")  # bytes for prepared data

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UsageError(f"A plan for {self.workers} workers: there must be one at least.")


@dataclass(frozen=True)
class Work:
    kinds: tuple[Kind, ...]
    data: Data = Data()

    @property
    def models(self) -> int:
        return sum(kind.models for kind in self.kinds)

    @cached_property
    def longest(self) -> int:
        return max(kind.epochs for kind in self.kinds)


@dataclass(frozen=True)
class Choice:
    """One way to do it. `packs` are the sizes by kind; empty: nobody is packed."""

    packs: tuple[int, ...] = ()
    width: int = 1
    share: bool = False

    @property
    def packs_any(self) -> bool:
        return any(size > 1 for size in self.packs)

    @property
    def name(self) -> str:
        words = [*(["pack"] if self.packs_any else []), *(["group"] if self.width > 1 else [])]
        return " + ".join([*(words or ["hop"]), *(["share"] if self.share else [])])

    @property
    def complexity(self) -> int:
        """How much there is to it beyond hopping; groups count twice, because they are not exact."""
        return self.packs_any + 2 * (self.width > 1) + self.share

    def size(self, kind: int) -> int:
        return self.packs[kind] if self.packs else 1


@dataclass(frozen=True)
class Units:
    """The units of a choice, by kind: how many packs there are, and the seconds of one unit of a pack."""

    groups: int
    packs: Floats
    seconds: Floats  # the mean of the packs of a kind
    longest: Floats  # the largest of them
    prepare: float  # of a partition, when it is shared


def units(work: Work, site: Site, choice: Choice) -> Units:
    groups = site.workers // choice.width
    share = 1 / (groups * choice.width)  # of an epoch that one worker reads in a unit
    columns = [_unit(kind, work.data, site, choice, choice.size(index), share) for index, kind in enumerate(work.kinds)]
    packs, seconds, longest = (np.array(column) for column in zip(*columns, strict=True))
    prepare = work.data.prepare * share if choice.share else 0.0
    return Units(groups, packs, seconds, longest, prepare / site.cores if site.cores else prepare)


def _unit(kind: Kind, data: Data, site: Site, choice: Choice, size: int, share: float) -> tuple[float, float, float]:
    """Packs of a kind, the mean seconds of their units, and those of the largest pack."""
    sizes = pack_sizes(kind.models, size)
    large, small = sizes[0], sizes[-1]
    wide = sizes.count(large)
    longest = unit_seconds(kind, data, site, choice, large, share)
    shortest = unit_seconds(kind, data, site, choice, small, share)
    return len(sizes), (longest * wide + shortest * (len(sizes) - wide)) / len(sizes), longest


def pack_sizes(models: int, size: int) -> list[int]:
    """As few packs of at most this size as there must be, all as large as one another or one less."""
    packs = -(-models // size)
    small, wide = divmod(models, packs)
    return [small + 1] * wide + [small] * (packs - wide)


def unit_seconds(
    kind: Kind, data: Data, site: Site, choice: Choice, members: int, share: float, slower: float = 1.0
) -> float:
    """A unit of a pack with so many members, each worker reading this share of the data.

    `slower` is a factor on the training alone, for models that are not quite as their kind.
    """
    ratio = kind.communication.ratio(choice.width) if kind.communication and choice.width > 1 else 0.0
    train = kind.seconds * slower * float(kind.curve[members - 1]) * (1 + ratio) * share
    around = site.unit + members * kind.state_bytes / site.bandwidth
    if choice.share:
        return train + data.read * share + around
    prepare = data.prepare * share
    return (max(train, prepare / site.cores) if site.cores else train + prepare) + around


def estimate(work: Work, site: Site, choice: Choice) -> Estimate:
    found = units(work, site, choice)
    epochs = np.array([kind.epochs for kind in work.kinds], dtype=float)
    evaluate = np.array([kind.evaluate * kind.models for kind in work.kinds]) / (found.groups * choice.width)
    load = float(((found.packs * found.seconds + evaluate) * epochs).sum())
    chain = float((found.longest * epochs).max() * found.groups)
    if choice.share:
        load, chain = _prepared(found, site, work.longest, load, chain)
    start = site.share_start if choice.share else 0.0
    states = np.array([kind.state_bytes * kind.models * kind.epochs for kind in work.kinds])
    peaks = [kind.peak_bytes * choice.size(index) for index, kind in enumerate(work.kinds)]
    moved = float(states.sum()) * found.groups if found.groups > 1 else 0.0
    return Estimate(start + max(load, chain), max(peaks), moved, choice.width == 1)


def _prepared(found: Units, site: Site, epochs: int, load: float, chain: float) -> tuple[float, float]:
    """Load and chain with the preparation: beside the training on cores of its own, else by who comes first."""
    packs = float(found.packs.sum())
    once = found.prepare * epochs
    if site.cores:
        return max(load, once) + found.prepare, max(chain, once) + found.prepare
    return load + once, chain + once * found.groups / min(packs, found.groups)


def best_packs(work: Work, site: Site, share: bool, slack: float = 1.0) -> tuple[int, ...]:
    """The sizes of packs with the least load that leave no chain longer than 1 / `slack` of the load, kind by kind.

    Larger packs mean less work and longer chains. For a limit on the chain each kind takes its cheapest size, so
    that the limit where chain and load meet is found by bisection.
    """
    loads, chains = zip(*(_loads_and_chains(kind, work.data, site, share) for kind in work.kinds), strict=True)
    limits = np.unique(np.concatenate(chains))
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if slack * limits[middle] < _least_load(loads, chains, limits[middle]):
            low = middle + 1
        else:
            high = middle
    near = [_sizes(loads, chains, float(limits[place])) for place in sorted({low, max(low - 1, 0)})]
    return min(near, key=lambda sizes: _end(loads, chains, sizes, slack))


def _end(loads: Sequence[Floats], chains: Sequence[Floats], sizes: Sequence[int], slack: float) -> float:
    load = sum(float(values[size - 1]) for values, size in zip(loads, sizes, strict=True))
    return max(load, slack * max(float(values[size - 1]) for values, size in zip(chains, sizes, strict=True)))


def _loads_and_chains(kind: Kind, data: Data, site: Site, share: bool) -> tuple[Floats, Floats]:
    """By the size of its packs, what a kind adds to the load of a worker, and how long it takes itself."""
    fit = int(min(site.memory // kind.peak_bytes, 1e9)) if kind.peak_bytes else kind.models
    most = max(min(len(kind.curve), kind.models, fit), 1)
    rows = [_unit(kind, data, site, Choice(share=share), size, 1 / site.workers) for size in range(1, most + 1)]
    table = np.array(rows)
    return table[:, 0] * table[:, 1] * kind.epochs, table[:, 2] * kind.epochs * site.workers


def _sizes(loads: Sequence[Floats], chains: Sequence[Floats], limit: float) -> tuple[int, ...]:
    return tuple(
        int(np.argmin(np.where(chain <= max(limit, chain.min()), load, np.inf))) + 1
        for load, chain in zip(loads, chains, strict=True)
    )


def _least_load(loads: Sequence[Floats], chains: Sequence[Floats], limit: float) -> float:
    sizes = _sizes(loads, chains, limit)
    return sum(float(load[size - 1]) for load, size in zip(loads, sizes, strict=True))


def best_widths(work: Work, site: Site, share: bool, count: int = 1) -> list[int]:
    """The widths of groups that end first, the best first; the narrowest of those that tie."""
    times = {
        width: estimate(work, site, Choice(width=width, share=share)).seconds for width in range(1, site.workers + 1)
    }
    return sorted(times, key=lambda width: times[width])[:count]


def fits(work: Work, site: Site, choice: Choice) -> str:
    """Why a choice cannot be; empty when it can."""
    if choice.width > 1 and any(kind.communication is None for kind in work.kinds):
        names = [kind.name for kind in work.kinds if kind.communication is None]
        return f"{names[0]} was not measured in a group, or trains whole partitions by itself"
    needed = max(kind.peak_bytes * choice.size(index) for index, kind in enumerate(work.kinds))
    if needed > site.memory:
        return f"needs {needed:.3g} bytes of a device that has {site.memory:.3g}"
    if choice.share and work.data.bytes / site.workers > site.cache:
        return f"{work.data.bytes / site.workers:.3g} bytes of prepared data a worker; the cache has {site.cache:.3g}"
    return ""
