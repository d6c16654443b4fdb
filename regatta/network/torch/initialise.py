"""Weights for the layers of a network that have none."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from regatta.network.axis_order import in_torch_order
from regatta.network.graph import Network

if TYPE_CHECKING:
    import torch


def initial_weights(network: Network, names: Collection[str], seed: int = 0) -> dict[str, torch.Tensor]:
    """The weights that `to_torch(network, seed=seed)` gives to the parameters of these names. No other layer is built.

    Each layer is initialised by the seed and its id, so it has the same weights in every network.
    """
    from regatta.network.torch.network_module import build_part
    from regatta.network.torch.to_torch import stored_tensor

    wanted, found = set(names), dict[str, "torch.Tensor"]()
    run = in_torch_order(network)
    for id in run.order:
        node = run.by_id[id]
        if wanted.isdisjoint(parameter.name for parameter in node.parameters):
            continue
        part = build_part(node, seed)
        for parameter in node.parameters:
            if parameter.name in wanted and parameter.name not in found:
                found[parameter.name] = stored_tensor(part, parameter).clone()
    return found
