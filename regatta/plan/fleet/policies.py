"""The interface of allocation policies.

A policy is asked whenever a model has finished an epoch or has converged. It gets a `FleetView` and answers with the
models whose devices change. Models are numbers: the rows of `FleetView.rates`.
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
from regatta.plan.fleet.rates import Floats, RateModel, rate, rate_table

Changes = Mapping[int, tuple[int, ...]]  # by model, its devices from now on; without devices it waits again


@dataclass(frozen=True)
class FleetModel:
    """A model to be trained: its known rates, the rows of an epoch, and when it may converge."""

    name: str
    rate: RateModel
    rows: int
    bounds: EpochBounds


@dataclass
class FleetView:
    """What a policy may know; the number of epochs that a model needs is not part of it."""

    nodes: Nodes
    models: Sequence[FleetModel]
    restart: float  # seconds that a change of devices costs a model
    now: float = 0.0
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)  # devices of the running models
    waiting: dict[int, None] = field(default_factory=dict)  # models without devices, in the order in which they came
    free: set[int] = field(default_factory=set)
    fixed: set[int] = field(default_factory=set)  # running models that may not change before their next stop
    epochs: Floats = field(default_factory=lambda: np.zeros(0))  # done until `now`, by model
    ready: Floats = field(default_factory=lambda: np.zeros(0))  # when the last restart of each model is finished

    @cached_property
    def rates(self) -> Floats:
        return rate_table((model.rate for model in self.models), self.nodes)

    @cached_property
    def envelopes(self) -> Envelopes:
        return Envelopes(self.rates)

    @cached_property
    def rows(self) -> Floats:
        return np.array([model.rows for model in self.models], dtype=float)

    def rate(self, model: int, devices: Sequence[int]) -> float:
        """The rate on these devices, which may be on more nodes than necessary."""
        width, nodes = len(devices), self.nodes.count_nodes(devices)
        if nodes == self.nodes.min_nodes[width]:
            return float(self.rates[model, width - 1])
        return rate(self.models[model].rate, width, nodes)


class Policy(Protocol):
    @property
    def lockstep(self) -> bool:
        """Whether running models go at the pace of the slowest, because they share one stream of data."""
        ...

    def decide(self, view: FleetView) -> Changes: ...
