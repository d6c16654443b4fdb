"""A grid of regimes, and every strategy by itself on it: is what the planner chooses really the best?

Each choice is played by the hop scheduler on a simulated clock, with truths that the profile has a little wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from regatta.errors import UsageError, nearest
from regatta.plan.strategy.choose import RULES, Rule, choose
from regatta.plan.strategy.costs import (
    ClusterSpec,
    DataCosts,
    ModelKind,
    Strategy,
    Workload,
)
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.plan.strategy.simulate import Noise, simulate_strategy
from regatta.plan.strategy.sizes import best_packs, best_widths

SIZES = {  # seconds of an epoch, bytes of a state, share of a device that a model fills, largest pack, communication
    "tiny": (2.0, 1e5, 0.03, 64, 2.0),
    "small": (20.0, 5e6, 0.25, 32, 0.25),
    "medium": (200.0, 1e8, 0.75, 8, 0.075),
    "large": (2000.0, 2e9, 1.03, 2, 0.02),
}
PREPARATIONS = {"cheap": 0.01, "even": 0.5, "dear": 4.0}  # over the training of an epoch
MODELS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WORKERS = (1, 2, 4, 8, 16, 32, 64)
TRUTH = Noise(profile=0.02)
SEEDS = (101, 102, 103)  # other than those that the planner plays with
LARGE = 1024  # units of an epoch; in so many, noise evens out in one simulation
EACH = 8  # workers of a node
ACROSS = 4.0  # links between nodes are so much slower than inside


@dataclass(frozen=True)
class Regime:
    models: int
    workers: int
    size: str
    preparation: str
    beside: tuple[tuple[str, int], ...] = ()  # further models: their size and number
    cores: int = 0  # of each worker, free for preparing data
    epochs: int = 2

    def work(self) -> Workload:
        seconds = SIZES[self.size][0]
        prepare = PREPARATIONS[self.preparation] * seconds
        kinds = (_kind(size, models, self.epochs) for size, models in ((self.size, self.models), *self.beside))
        return Workload(tuple(kinds), DataCosts.shared(prepare, seconds, 1e9))

    def cluster(self) -> ClusterSpec:
        return ClusterSpec(self.workers, EACH, 16e9, unit=0.005, bandwidth=1e9, cores=self.cores, share_start=1.0)


def _kind(size: str, models: int, epochs: int) -> ModelKind:
    seconds, state, filled, most, ratio = SIZES[size]
    packed = {members: 1 + filled * (members - 1) for members in (2, 4, 8, 16, 32, 64) if members <= most}
    link = Communication(ratio, ratio * ACROSS, EACH)
    return ModelKind(size, models, epochs, seconds, 0.0, state, 4 * state, packed, link)


def grid(models: Sequence[int] = MODELS, workers: Sequence[int] = WORKERS) -> Iterator[Regime]:
    for size in SIZES:
        for preparation in PREPARATIONS:
            yield from (Regime(m, w, size, preparation) for m in models for w in workers)


def mixed(workers: Sequence[int] = WORKERS[::2]) -> Iterator[Regime]:
    """Models of two sizes at once, with and without cores for preparing data."""
    for tiny, beside in product((4, 40), (("large", 1), ("medium", 6))):
        for count, preparation, cores in product(workers, PREPARATIONS, (0, 2)):
            yield Regime(tiny, count, "tiny", preparation, (beside,), cores)


STRATEGIES = ("hop", "pack", "group", "share")


def single(work: Workload, cluster: ClusterSpec, strategy: str) -> Strategy:
    """A strategy by itself, with its best parameters by the formulas."""
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
    """Mean makespans of the strategies by themselves, and of the planner's choice, by these rules, as `plan`."""
    work, cluster = regime.work(), regime.cluster()
    seeds = SEEDS if work.models * regime.workers <= LARGE else SEEDS[:1]
    choices = {strategy: single(work, cluster, strategy) for strategy in STRATEGIES}
    choices["plan"] = choose(work, cluster, numerics="fast", rules=rules)[0]
    played = {
        choice: fmean(simulate_strategy(work, cluster, choice, TRUTH, seed) for seed in seeds)
        for choice in choices.values()
    }
    return {name: played[choice] for name, choice in choices.items()}
