"""The words between an allocation policy and what drives it, be it the simulator or a run.

A policy is asked whenever a model comes to the end of an epoch, or has converged. It looks at a
`FleetView` and answers with the models whose devices change. Models are numbers, the rows of `FleetView.rates`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from regatta.plan.fleet.convergence import EpochBounds
from regatta.plan.fleet.fluid_bound import Envelopes
from regatta.plan.fleet.nodes import Nodes
from regatta.plan.fleet.rates import Floats, RateModel, table

Changes = Mapping[int, tuple[int, ...]]  # model: its devices from now on; none of them puts it back into the queue


@dataclass(frozen=True)
class FleetModel:
    """A model to be trained: its rates as they are known, the rows of an epoch, and when it may converge."""

    name: str
    rate: RateModel
    rows: int
    bounds: EpochBounds


@dataclass
class FleetView:
    """What a policy may know. How many epochs a model needs is not part of it."""

    machines: Nodes
    tasks: Sequence[FleetModel]
    restart: float  # seconds that a change of devices costs a model
    now: float = 0.0
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)  # the models that run, and their devices
    waiting: dict[int, None] = field(default_factory=dict)  # the models that do not, in the order of their coming
    free: set[int] = field(default_factory=set)
    fixed: set[int] = field(default_factory=set)  # running models that cannot be changed before their next stop
    epochs: Floats = field(default_factory=lambda: np.zeros(0))  # done until `now`, by model
    ready: Floats = field(default_factory=lambda: np.zeros(0))  # when each is done with its last restart

    @cached_property
    def rates(self) -> Floats:
        return table((task.rate for task in self.tasks), self.machines)

    @cached_property
    def envelopes(self) -> Envelopes:
        return Envelopes(self.rates)

    @cached_property
    def rows(self) -> Floats:
        return np.array([task.rows for task in self.tasks], dtype=float)

    def rate(self, model: int, devices: Sequence[int]) -> float:
        """The rate on these very devices, which may lie on more nodes than they need to."""
        nodes = self.machines.nodes(devices)
        width = len(devices)
        if nodes == self.machines.fewest[width]:
            return float(self.rates[model, width - 1])
        return float(self.tasks[model].rate.rates(np.array([float(width)]), np.array([float(nodes)]))[0])


class Policy(Protocol):
    @property
    def lockstep(self) -> bool:
        """Do the models that run together go at the pace of the slowest, because they share one stream of data?"""
        ...

    def decide(self, view: FleetView) -> Changes: ...
