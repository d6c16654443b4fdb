"""Finds the layer in which a network would fail, without computing or allocating anything.

Shapes are inferred from hyperparameters alone (regatta/network/shapes.py); PyTorch has further rules, such as that the
padding of a pool is at most half of its window. Here every layer is built and run on the meta device.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch

from regatta.errors import DataError, UsageError
from regatta.network.axis_order import in_torch_order
from regatta.network.graph import Network, Node
from regatta.network.torch.layers import build_layer, can_build

if TYPE_CHECKING:
    from torch import Tensor

SAMPLES = 2
_WHOLE_NUMBERS = ("EMBED",)
_LAYER_ERRORS = (
    RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError, ArithmeticError,
)  # fmt: skip


class TrialRun:
    """Runs networks that have most layers in common: a layer that was run on the same shapes is not run again."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def first_failure(self, network: Network) -> str | None:
        """What PyTorch says of the first layer that does not run; None if all do, or if that cannot be known.

        It cannot be known for layers that PyTorch does not have, and for inputs with axes of unknown sizes.
        """
        try:
            run = in_torch_order(network)
        except UsageError:
            return None
        values: dict[str, Any] = {}
        with torch.no_grad(), torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for id in run.order:
                node = run.by_id[id]
                given = [values[source] for source in run.sources[id]]
                if node.kind == "INPUT":
                    values[id] = _example(run, node)
                    if values[id] is None:
                        return None
                elif not can_build(node):
                    return None
                else:
                    try:
                        values[id] = self._output(node, given)
                    except DataError as error:
                        return str(error)
                    except _LAYER_ERRORS as error:
                        reason = str(error).partition("\n")[0]
                        return f"{node.kind} {id!r:.80} does not take {_shown(given)}: {reason}"
        return None

    def _output(self, node: Node, given: list[Any]) -> Any:
        rank = None if node.shape is None else len(node.shape)  # some layers are built for it
        parameters = tuple((each.role, each.shape) for each in node.parameters)
        key = node.kind, tuple(node.attributes.items()), rank, parameters, tuple(map(_signature, given))
        if key not in self._known:
            self._known[key] = build_layer(node).eval()(*given)
        return self._known[key]


def first_failure(network: Network) -> str | None:
    """The first failure of a single network."""
    return TrialRun().first_failure(network)


def _signature(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, tuple | list):
        return tuple(map(_signature, value))
    return value  # type: ignore[no-any-return]


def _example(network: Network, node: Node) -> Tensor | None:
    if node.shape is None or None in node.shape[1:]:
        return None
    whole = "int" in str(node.get("dtype") or "") or any(
        network.by_id[target].kind in _WHOLE_NUMBERS for target in network.targets[node.id]
    )
    sizes = [SAMPLES if size is None else size for size in node.shape]
    return torch.zeros(sizes, dtype=torch.int64 if whole else torch.float32)


def _shown(given: list[Any]) -> str:
    return ", ".join(str(tuple(each.shape)) if isinstance(each, torch.Tensor) else "several" for each in given)
