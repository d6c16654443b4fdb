"""Compares the planner's choice with every single strategy on a grid of simulated sweeps.

The hop scheduler simulates each strategy, with a workload that differs a little from its profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from regatta.errors import UsageError, nearest
from regatta.plan.strategy.choose import RULES, Rule, choose
from regatta.plan.strategy.costs import ClusterSpec, DataCosts, ModelKind, Strategy, Workload
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.plan.strategy.simulate import Noise, simulate_strategy
from regatta.plan.strategy.sizes import best_packs, best_widths

# Seconds of an epoch, bytes of a state, share of a device that a model fills, largest pack, communication.
SIZES = {
    "tiny": (2.0, 1e5, 0.03, 64, 2.0),
    "small": (20.0, 5e6, 0.25, 32, 0.25),
    "medium": (200.0, 1e8, 0.75, 8, 0.075),
    "large": (2000.0, 2e9, 1.03, 2, 0.02),
}
PREPROCESSING = {"cheap": 0.01, "even": 0.5, "dear": 4.0}  # time over that of training
MODELS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WORKERS = (1, 2, 4, 8, 16, 32, 64)
NOISE = Noise(profile=0.02)
SEEDS = (101, 102, 103)  # other than those of the planner's own simulations
LARGE = 1024  # units of an epoch, for which one simulation is enough, because noise evens out
WORKERS_PER_NODE = 8
ACROSS = 4.0  # communication across nodes over that inside


@dataclass(frozen=True)
class Regime:
    models: int
    workers: int
    size: str
    preprocessing: str
    others: tuple[tuple[str, int], ...] = ()  # sizes and numbers of further models
    cores: int = 0  # for each worker, free for preprocessing
    epochs: int = 2

    def work(self) -> Workload:
        seconds = SIZES[self.size][0]
        prepare = PREPROCESSING[self.preprocessing] * seconds
        kinds = (_kind(size, models, self.epochs) for size, models in ((self.size, self.models), *self.others))
        return Workload(tuple(kinds), DataCosts.shared(prepare, seconds, 1e9))

    def cluster(self) -> ClusterSpec:
        return ClusterSpec(
            self.workers, WORKERS_PER_NODE, 16e9, unit=0.005, bandwidth=1e9, cores=self.cores, share_start=1.0
        )


def _kind(size: str, models: int, epochs: int) -> ModelKind:
    seconds, state, filled, most, ratio = SIZES[size]
    packed = {members: 1 + filled * (members - 1) for members in (2, 4, 8, 16, 32, 64) if members <= most}
    link = Communication(ratio, ratio * ACROSS, WORKERS_PER_NODE)
    return ModelKind(size, models, epochs, seconds, 0.0, state, 4 * state, packed, link)


def grid(models: Sequence[int] = MODELS, workers: Sequence[int] = WORKERS) -> Iterator[Regime]:
    for size in SIZES:
        for preprocessing in PREPROCESSING:
            yield from (Regime(m, w, size, preprocessing) for m in models for w in workers)


def mixed(workers: Sequence[int] = WORKERS[::2]) -> Iterator[Regime]:
    """Models of two sizes at once, with and without cores for preprocessing."""
    for tiny, beside in product((4, 40), (("large", 1), ("medium", 6))):
        for count, preprocessing, cores in product(workers, PREPROCESSING, (0, 2)):
            yield Regime(tiny, count, "tiny", preprocessing, (beside,), cores)


STRATEGIES = ("hop", "pack", "group", "share")


def single(work: Workload, cluster: ClusterSpec, strategy: str) -> Strategy:
    """One strategy with its best parameters by the formulas."""
    match strategy:
        case "hop":
            return Strategy()
        case "pack":
            return Strategy(best_packs(work, cluster, share=False)[0])
        case "group":
            return Strategy(width=best_widths(work, cluster, share=False)[0])
        case "share":
            return Strategy(share=True)
    raise UsageError(f"There is no strategy {strategy!r}.", candidates=nearest(strategy, STRATEGIES))


def compare(regime: Regime, rules: Sequence[Rule] = RULES) -> dict[str, float]:
    """Mean makespans of the single strategies, and of the planner's choice by these rules, as `plan`."""
    work, cluster = regime.work(), regime.cluster()
    seeds = SEEDS if work.models * regime.workers <= LARGE else SEEDS[:1]
    strategies = {strategy: single(work, cluster, strategy) for strategy in STRATEGIES}
    strategies["plan"] = choose(work, cluster, numerics="fast", rules=rules)[0]
    makespans = {
        strategy: fmean(simulate_strategy(work, cluster, strategy, NOISE, seed) for seed in seeds)
        for strategy in strategies.values()
    }
    return {name: makespans[strategy] for name, strategy in strategies.items()}
