"""Simulates a strategy with the hop scheduler itself: packs are its models, groups its workers.

A formula knows loads and chains. It does not know that sixteen packs on sixteen workers wait for each other as soon as
their times vary. So the best strategies are simulated before one is chosen. The planner is tested by the same
simulation, with a workload that differs a little from its profile.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from regatta.plan.schedule.simulate import simulate, spread_partitions
from regatta.plan.schedule.units import Unit
from regatta.plan.strategy.costs import ClusterSpec, Strategy, Workload, evaluations, pack_sizes, unit_seconds
from regatta.plan.strategy.what_if import HopWorkload


@dataclass(frozen=True)
class Noise:
    """How far times are from what was measured: standard deviations of logarithms."""

    profile: float = 0.0  # of each number of the profile
    models: float = 0.05  # of a model from its kind
    units: float = 0.05  # from unit to unit


def simulate_strategy(
    work: Workload, cluster: ClusterSpec, strategy: Strategy, noise: Noise, seed: int = 0, effort: int | None = 0
) -> float:
    """The makespan of a strategy; `effort` is what the scheduler may spend on looking ahead."""
    real = with_noise(work, noise.profile, seed)
    return max(
        _simulate_team(work, real, kinds, workers, own, noise, seed, effort)
        for kinds, workers, own in strategy.by_team(work, cluster)
    )


def count_units(work: Workload, cluster: ClusterSpec, strategy: Strategy) -> int:
    """How many units a simulation has to go through."""
    units = 0
    for kinds, workers, own in strategy.by_team(work, cluster):
        packs = (-(-work.kinds[k].models // strategy.pack_size(k)) * work.kinds[k].epochs for k in kinds)
        units += sum(packs) * workers.partition_count(own)
    return units


def with_noise(work: Workload, deviation: float, seed: int) -> Workload:
    """The workload as it may really be, where each number of the profile is a little wrong."""
    draw = random.Random(f"profile {seed}")

    def factor() -> float:
        return draw.lognormvariate(0.0, deviation)

    kinds = []
    for kind in work.kinds:
        packed = {size: time * factor() for size, time in kind.packed.items()}
        communication = kind.communication.scaled(factor()) if kind.communication else None
        kinds.append(replace(kind, seconds=kind.seconds * factor(), packed=packed, communication=communication))
    data = replace(work.data, prepare=work.data.prepare * factor(), read=work.data.read * factor())
    return Workload(tuple(kinds), data)


def _simulate_team(
    work: Workload,
    real: Workload,
    kinds: Sequence[int],
    cluster: ClusterSpec,
    strategy: Strategy,
    noise: Noise,
    seed: int,
    effort: int | None,
) -> float:
    """The makespan of one team, with groups of one width; `real` is the workload as it really is."""
    groups, partitions = cluster.workers // strategy.width, cluster.partition_count(strategy)
    evals = cluster.evals or groups
    share = 1 / (partitions * strategy.width)

    def seconds_of(kind: Workload, members: int, slower: float = 1.0) -> float:
        return float(unit_seconds(kind, cluster, strategy, np.array([members]), share, slower)[0])

    expected, trained, evaluated, epochs = {}, {}, {}, {}
    for index in kinds:
        kind, profiled_kind, real_kind = work.kinds[index], work.only([index]), real.only([index])
        luck = random.Random(f"models {seed} {index}")  # the same for all strategies
        for number, members in enumerate(pack_sizes(kind.models, strategy.pack_size(index))):
            name = f"{index}/{number}"
            slower = luck.lognormvariate(0.0, noise.models / math.sqrt(members))
            expected[name] = seconds_of(profiled_kind, members)
            trained[name] = seconds_of(real_kind, members, slower)
            packed = Strategy((members,), strategy.width, strategy.share)
            seconds = float(evaluations(profiled_kind, cluster, packed)[0])
            evaluated[name] = members * seconds / (evals * strategy.width)
            epochs[name] = kind.epochs
    if not any(evaluated.values()):
        evals = 0
    times = _ExpectedTimes(expected, evaluated, noise.units)
    hop_work = HopWorkload(epochs, partitions, evals, times)
    hopper = hop_work.hopper(spread_partitions(partitions, groups, evals), effort=effort)
    prepare = real.data.prepare / partitions / max(cluster.cores, 1) if strategy.share else 0.0
    real_times = _RealTimes(trained, evaluated, prepare, cluster.cores > 0, noise.units, seed)
    start = cluster.share_start if strategy.share else 0.0
    return start + simulate(hopper, real_times, learn=False).makespan


@dataclass(frozen=True)
class _ExpectedTimes:
    """What the scheduler goes by: the mean of each kind."""

    trained: Mapping[str, float]
    evaluated: Mapping[str, float]
    noise: float

    def seconds(self, unit: Unit, worker: str) -> float:
        return (self.trained if unit.kind == "train" else self.evaluated)[unit.model]

    def observe(self, unit: Unit, worker: str, seconds: float) -> None:
        """The mean stays."""


@dataclass(frozen=True)
class _RealTimes:
    """What units take. The first unit of an epoch on a partition also waits until its data is preprocessed.

    The noise of a unit does not depend on the strategy, so that all strategies are compared with the same luck.
    """

    trained: Mapping[str, float]
    evaluated: Mapping[str, float]
    prepare: float
    beside: bool  # data is preprocessed on other cores while the unit trains
    noise: float
    seed: int
    prepared: set[tuple[int, int]] = field(default_factory=set)

    def seconds(self, unit: Unit, worker: str) -> float:
        if unit.kind == "eval":
            return self.evaluated[unit.model]
        seconds = self.trained[unit.model]
        if self.noise:
            draw = random.Random(f"{self.seed} {unit.model} {unit.epoch} {unit.partition}")
            seconds *= draw.lognormvariate(0.0, self.noise)
        if (unit.epoch, unit.partition) in self.prepared:
            return seconds
        self.prepared.add((unit.epoch, unit.partition))
        return max(seconds, self.prepare) if self.beside else seconds + self.prepare

    def observe(self, unit: Unit, worker: str, seconds: float) -> None:
        """Real times are not learned."""
