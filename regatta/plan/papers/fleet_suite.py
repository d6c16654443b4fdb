"""The FLEET paper's experiment: 100 unlike models on 20 to 160 devices, with unknown numbers of epochs.

`fleet` is calibrated to the paper's numbers. Rates are 21 to 176 rows per second on one device, for 30,606 rows. Models
take 10.4 thousand seconds on average (its Table 3; the deviation is 4.2 thousand there and 4.6 here), and at most 22.7
thousand. Each flotilla costs 34 seconds for checkpoints and restarts (its Table 4). Each device after the first keeps
0.97 to 0.99 of the efficiency inside a node of four, and 0.92 to 0.97 beyond; each further node costs 5%. `fleet-harsh`
has epochs from 10 to 60, groups that scale worse, and rates with a longer tail.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regatta.errors import UsageError, nearest
from regatta.plan.fleet.convergence import EpochBounds, as_long_again
from regatta.plan.fleet.nodes import Nodes
from regatta.plan.fleet.policies import FleetModel, Policy
from regatta.plan.fleet.rates import GeometricRates, rate
from regatta.plan.fleet.simulate import FleetSchedule, GroundTruth, malleable_bound, simulate
from regatta.plan.fleet.water_filling import WaterFilling
from regatta.plan.papers.fleet_policies import FleetG, FleetL, Homogeneous, LongestFirst, OneDevice

ROWS = 30_606  # of Caltech256
MAX_SECONDS = 22_700.0  # of a model on one device
RESTART_SECONDS = 34.0
DEVICES_PER_NODE = 4
DEVICES = (20, 40, 60, 80, 100, 120, 140, 160)


@dataclass(frozen=True)
class FleetProblem:
    models: tuple[FleetModel, ...]
    truth: GroundTruth
    restart: float = RESTART_SECONDS

    def run(self, policy: str, nodes: Nodes, seed: int = 0, stops: int | None = None) -> FleetSchedule:
        own = make_policy(policy, seed)
        return simulate(own, self.models, nodes, self.truth, restart=self.restart, stops=stops)

    def baseline(self, nodes: Nodes, orders: int = 200) -> float:
        """The mean end with one device per model, over random orders.

        It equals the policy `one-device`, without simulating events: a free device takes the next model.
        """
        pairs = zip(self.models, self.truth.epochs, strict=True)
        lengths = [model.rows * epochs / rate(model.rate, 1, 1) for model, epochs in pairs]
        return sum(_end_of_list(lengths, nodes.device_count, seed) for seed in range(orders)) / orders

    def bound(self, nodes: Nodes) -> float:
        return malleable_bound(self.models, nodes, self.truth)


def _end_of_list(lengths: Sequence[float], devices: int, seed: int) -> float:
    order = list(lengths)
    random.Random(seed).shuffle(order)
    ends = [0.0] * devices
    for length in order:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def calibrated(seed: int, models: int = 100) -> FleetProblem:
    draw = random.Random(f"fleet {models} {seed}")
    least, most = 12, 24
    rates, epochs = [], []
    for _ in range(models):
        single = min(max(draw.lognormvariate(math.log(56), 0.38), 21.0), 176.0)
        longest = int(MAX_SECONDS * single / ROWS)
        rates.append(GeometricRates(single, draw.uniform(0.97, 0.99), draw.uniform(0.92, 0.97), 0.95, DEVICES_PER_NODE))
        epochs.append(min(draw.randint(least, most), longest))
    return _problem(rates, epochs, EpochBounds(least, most))


def harsh(seed: int, models: int = 100) -> FleetProblem:
    draw = random.Random(f"fleet-harsh {models} {seed}")
    rates = []
    for _ in range(models):
        single = min(max(draw.lognormvariate(math.log(45), 0.6), 21.0), 176.0)
        loss = draw.uniform(0.85, 0.98)
        rates.append(GeometricRates(single, loss, loss, 0.95, DEVICES_PER_NODE))
    return _problem(rates, [draw.randint(10, 60) for _ in rates], EpochBounds(10, 60))


def _problem(rates: list[GeometricRates], epochs: list[int], bounds: EpochBounds) -> FleetProblem:
    models = tuple(FleetModel(f"m{index}", own, ROWS, bounds) for index, own in enumerate(rates))
    return FleetProblem(models, GroundTruth(tuple(epochs)))


SUITES: dict[str, Callable[[int], FleetProblem]] = {"fleet": calibrated, "fleet-harsh": harsh}

POLICIES: dict[str, Callable[[int], Policy]] = {
    "water": lambda seed: WaterFilling(),
    "water-again": lambda seed: WaterFilling(as_long_again),
    "fleet-g": lambda seed: FleetG(),
    "fleet-g-own-pace": lambda seed: FleetG(lockstep=False),
    "fleet-l": lambda seed: FleetL(),
    "one-device": OneDevice,
    "longest-first": LongestFirst,
    "homogeneous": Homogeneous,
    "homogeneous-own-pace": lambda seed: Homogeneous(seed, lockstep=False),
}


def make_policy(name: str, seed: int = 0) -> Policy:
    if name not in POLICIES:
        hint = f"Policies: {', '.join(POLICIES)}."
        raise UsageError(f"There is no allocation policy {name!r}.", candidates=nearest(name, POLICIES), hint=hint)
    return POLICIES[name](seed)
