"""The two suites of scheduling problems: a grid of sizes, and sizes drawn at random.

A unit's time is the cost of its network over the speed of its worker. Costs are those of the 35 image-classification
networks listed by S. Albanie, convnet-burden (millions of operations for one image; mean 5942, deviation 5670, 360 to
21000), which the Cerebro paper samples from; speeds are the paper's four GPUs (Tflop/s). Three kinds: all the same
(hh), unlike networks on equal workers (hx), both unlike (xx).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from regatta.plan.bounds import lower_bound
from regatta.plan.estimates import KnownTimes
from regatta.plan.hop import Hopper
from regatta.plan.simulate import simulate, spread

# fmt: off
COSTS = (
    727, 724, 837, 360, 727, 2000, 3000, 2000, 2000, 2000, 16000, 16000, 20000, 2000, 2000, 4000, 4000, 8000, 11000,
    4000, 8000, 16000, 6000, 4000, 8000, 11000, 4000, 8000, 21000, 2000, 3000, 8000, 3000, 4000, 579,
)
# fmt: on
SPEEDS = (12.1, 5.6, 11.3, 18.7)
KINDS = ("hh", "hx", "xx")
GRID = ((16, 4), (16, 8), (16, 16), (64, 16), (64, 64))


@dataclass(frozen=True)
class Problem:
    """Models and workers, a partition each, one epoch."""

    suite: str
    kind: str
    models: int
    workers: int
    seed: int

    def times(self) -> KnownTimes:
        draw = random.Random(f"{self.kind}{self.models}x{self.workers}-{self.seed}")
        costs = [draw.choice(COSTS) for _ in range(self.models)]
        speeds = [draw.choice(SPEEDS) for _ in range(self.workers)]
        if self.kind[1] == "h":
            costs = costs[:1] * self.models
        if self.kind[0] == "h":
            speeds = speeds[:1] * self.workers
        return KnownTimes({(f"m{i}", j): c / s / 16 for i, c in enumerate(costs) for j, s in enumerate(speeds)})

    def hopper(self, times: KnownTimes, rule: str, effort: int) -> Hopper:
        hopper = Hopper(self.workers, estimates=times, rule=rule, effort=effort)
        for worker, (held, _) in spread(self.workers, self.workers).items():
            hopper.add_worker(worker, held)
        for index in range(self.models):
            hopper.add_model(f"m{index}", 1)
        return hopper

    def ratio(self, rule: str, effort: int = 0) -> float:
        """Simulated makespan over the lower bound."""
        times = self.times()
        epochs = {f"m{index}": 1 for index in range(self.models)}
        bound = lower_bound(times, spread(self.workers, self.workers), epochs, self.workers)
        return simulate(self.hopper(times, rule, effort), times, learn=False).makespan / bound.seconds


def grid_suite() -> Iterator[Problem]:
    """375 problems: 5 sizes, 3 kinds, 25 seeds."""
    for kind in KINDS:
        for models, workers in GRID:
            for seed in range(25):
                yield Problem("grid", kind, models, workers, seed)


def off_grid_suite() -> Iterator[Problem]:
    """450 problems: 3 to 20 workers, half as many to 80 models, numbers that do not divide each other."""
    for kind in KINDS:
        for seed in range(150):
            draw = random.Random(f"off{kind}{seed}")
            workers = draw.randint(3, 20)
            yield Problem("off grid", kind, draw.randint((workers + 1) // 2, 80), workers, seed)
