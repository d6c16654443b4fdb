"""A choice played on a simulated clock, by the hop scheduler itself: packs are its models, groups its workers.

A formula knows loads and chains; it does not know that sixteen packs on sixteen workers wait for each other as soon as
their times stray. So the best choices are played before one is taken. The same play, with truths that the profile has
a little wrong, is what the planner is tested by.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from regatta.plan.schedule.estimates import Times
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.simulate import simulate, spread_partitions
from regatta.plan.schedule.units import Unit
from regatta.plan.strategy.costs import (
    ClusterSpec,
    Strategy,
    Workload,
    evaluations,
    pack_sizes,
    unit_seconds,
)
from regatta.plan.strategy.groups_or_hops import Communication


@dataclass(frozen=True)
class Noise:
    """How far things are from what was measured: deviations of logarithms."""

    profile: float = 0.0  # of each figure of the profile
    models: float = 0.05  # of a model from its kind
    units: float = 0.05  # from unit to unit


def simulate_strategy(
    work: Workload, site: ClusterSpec, choice: Strategy, strays: Noise, seed: int = 0, effort: int | None = 0
) -> float:
    """The makespan of a choice when all goes as it does; `effort` is what the scheduler may spend on looking ahead."""
    real = with_noise(work, strays.profile, seed)
    parts = choice.parts(work, site)
    return max(_play(work, real, kinds, its, way, strays, seed, effort) for kinds, its, way in parts)


def _play(
    work: Workload, real: Workload, kinds: Sequence[int], site: ClusterSpec, choice: Strategy, strays: Noise, seed: int,
    effort: int | None,
) -> float:  # fmt: skip
    """The same of one team, which trains these kinds."""
    groups, parts = site.workers // choice.width, site.parts(choice)
    evals = site.evals or groups
    share = 1 / (parts * choice.width)
    luck = {index: random.Random(f"models {seed} {index}") for index in kinds}  # the same for all choices
    expected, trained, evaluated, epochs = {}, {}, {}, {}
    for name, index, members in _packs(work, kinds, choice):
        kind, true = work.kinds[index], real.kinds[index]
        slower = luck[index].lognormvariate(0.0, strays.models / math.sqrt(members))
        expected[name] = _unit(Workload((kind,), work.data), site, choice, members, share)
        trained[name] = _unit(Workload((true,), real.data), site, choice, members, share, slower)
        alone = Strategy((members,), choice.width, choice.share)
        seconds = float(evaluations(Workload((kind,), work.data), site, alone)[0])
        evaluated[name] = members * seconds / (evals * choice.width)
        epochs[name] = kind.epochs
    hopper = _hopper((groups, parts, evals), _Expected(expected, evaluated, strays.units), epochs, effort)
    prepare = real.data.prepare / parts / max(site.cores, 1)
    played = _Played(trained, evaluated, prepare if choice.share else 0.0, site.cores > 0, strays.units, seed)
    begin = site.share_start if choice.share else 0.0
    return begin + simulate(hopper, played, learn=False).makespan


def count_units(work: Workload, site: ClusterSpec, choice: Strategy) -> int:
    """How many units a simulation has to go through."""
    found = 0
    for kinds, its, way in choice.parts(work, site):
        packs = (-(-work.kinds[index].models // choice.size(index)) * work.kinds[index].epochs for index in kinds)
        found += sum(packs) * its.parts(way)
    return found


def with_noise(work: Workload, deviation: float, seed: int) -> Workload:
    """The work as it may really be, where the profile has each figure a little wrong."""
    draw = random.Random(f"profile {seed}")

    def off() -> float:
        return draw.lognormvariate(0.0, deviation)

    kinds = []
    for kind in work.kinds:
        packed = {size: time * off() for size, time in kind.packed.items()}
        link = _scaled(kind.communication, off()) if kind.communication else None
        kinds.append(replace(kind, seconds=kind.seconds * off(), packed=packed, communication=link))
    data = replace(work.data, prepare=work.data.prepare * off(), read=work.data.read * off())
    return Workload(tuple(kinds), data)


def _scaled(link: Communication, factor: float) -> Communication:
    across = None if link.across is None else link.across * factor
    return Communication(link.inside * factor, across, link.each)


def _packs(work: Workload, kinds: Sequence[int], choice: Strategy) -> Iterator[tuple[str, int, int]]:
    """All packs of these kinds: their names, the numbers of their kinds, their members."""
    for index in kinds:
        for number, members in enumerate(pack_sizes(work.kinds[index].models, choice.size(index))):
            yield f"{index}/{number}", index, members


def _unit(
    work: Workload, site: ClusterSpec, choice: Strategy, members: int, share: float, slower: float = 1.0
) -> float:
    return float(unit_seconds(work, site, choice, np.array([members]), share, slower)[0])


def _hopper(sizes: tuple[int, int, int], times: Times, epochs: Mapping[str, int], effort: int | None) -> Hopper:
    groups, parts, evals = sizes
    if not any(times.seconds(Unit("eval", name, 1, 0), "") for name in epochs):
        evals = 0
    hopper = Hopper(parts, evals, estimates=times, effort=effort)
    for worker, held in spread_partitions(parts, groups, evals).items():
        hopper.add_worker(worker, *held)
    for name, count in epochs.items():
        hopper.add_model(name, count)
    return hopper


@dataclass(frozen=True)
class _Expected:
    """What the scheduler goes by: the mean of each kind."""

    trained: Mapping[str, float]
    evaluated: Mapping[str, float]
    noise: float

    def seconds(self, unit: Unit, worker: str) -> float:
        return (self.trained if unit.kind == "train" else self.evaluated)[unit.model]

    def observe(self, unit: Unit, worker: str, seconds: float) -> None:
        """The mean stays."""


@dataclass(frozen=True)
class _Played:
    """What units take: the first of an epoch on a partition also waits until its data is prepared.

    A unit strays as it does whatever else was chosen, so that choices are compared with the same luck.
    """

    trained: Mapping[str, float]
    evaluated: Mapping[str, float]
    prepare: float
    beside: bool  # on cores of its own, while the unit trains
    noise: float
    seed: int
    prepared: set[tuple[int, int]] = field(default_factory=set)

    def seconds(self, unit: Unit, worker: str) -> float:
        if unit.kind == "eval":
            return self.evaluated[unit.model]
        seconds = self.trained[unit.model] * self._luck(unit)
        if (unit.epoch, unit.partition) in self.prepared:
            return seconds
        self.prepared.add((unit.epoch, unit.partition))
        return max(seconds, self.prepare) if self.beside else seconds + self.prepare

    def _luck(self, unit: Unit) -> float:
        if not self.noise:
            return 1.0
        draw = random.Random(f"{self.seed} {unit.model} {unit.epoch} {unit.partition}")
        return draw.lognormvariate(0.0, self.noise)

    def observe(self, unit: Unit, worker: str, seconds: float) -> None:
        """What really happens is not learned."""
