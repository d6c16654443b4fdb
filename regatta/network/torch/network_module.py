"""A torch.nn.Module with the layers of a network. Its state_dict has the names of the network's parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from regatta.errors import UsageError
from regatta.network.graph import Network, Node, Parameter, split_role
from regatta.network.torch.layers import build_layer
from regatta.seeds import derive_seed


class NetworkModule(nn.Module):
    """The layers of a network, called in its order.

    A layer is registered where its parameters say: that of `features.0.weight` is `features.0`, as in the model that
    the network was read from. Layers without parameters are in `functions`.
    """

    def __init__(self, network: Network, seed: int | None = None, has_fixed_inputs: bool = False) -> None:
        """With a seed, each layer is initialised by the seed and its id, whatever the other layers are.

        With `has_fixed_inputs`, inputs that do not have the shapes of the network are refused.
        """
        super().__init__()
        self.network = network
        self._has_fixed_inputs = has_fixed_inputs
        self._steps = [network.by_id[id] for id in network.order if network.by_id[id].kind != "INPUT"]
        self._uses = Counter(edge.source for edge in network.edges)
        self.functions = nn.ModuleList()
        # Paths rather than modules, so that a copy of this module calls its own layers.
        self._paths = [self._register(node, build_part(node, seed)) for node in self._steps]
        _tie(self)

    def _register(self, node: Node, part: nn.Module) -> tuple[str, ...]:
        path = tuple(_path(node).split("."))
        if node.parameters and _add_submodule(self, path, part):
            return path
        self.functions.append(part)
        return "functions", str(len(self.functions) - 1)

    @property
    def parts(self) -> list[nn.Module]:
        """The modules of all nodes but the inputs, in the network's order."""
        return [_submodule(self, path) for path in self._paths]

    def forward(self, *inputs: torch.Tensor) -> Any:
        network = self.network
        if len(inputs) != len(network.inputs):
            raise UsageError(f"The network takes {len(network.inputs)} inputs, not {len(inputs)}.")
        if self._has_fixed_inputs:
            _check_inputs(network, inputs)
        values: dict[str, Any] = dict(zip((node.id for node in network.inputs), inputs, strict=True))
        left = Counter(self._uses)
        for node, path in zip(self._steps, self._paths, strict=True):
            sources = network.sources[node.id]
            values[node.id] = _submodule(self, path)(*(values[source] for source in sources))
            for source in sources:
                left[source] -= 1
                if not left[source]:
                    del values[source]  # free outputs that are no longer needed
        results = tuple(values[node.id] for node in self._steps if node.kind == "OUTPUT")
        return results[0] if len(results) == 1 else results

    def expected(self) -> list[tuple[nn.Module, Parameter]]:
        """Every parameter, with the module that it belongs to."""
        return [
            (p, parameter) for node, p in zip(self._steps, self.parts, strict=True) for parameter in node.parameters
        ]


def _check_inputs(network: Network, inputs: Sequence[torch.Tensor]) -> None:
    for node, tensor in zip(network.inputs, inputs, strict=True):
        shape, given = node.shape or (), tuple(tensor.shape)
        if len(shape) != len(given) or any(size not in (None, g) for size, g in zip(shape[1:], given[1:], strict=True)):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            raise UsageError(
                f"The input {node.id!r:.80} has the shape {given}; the network takes ({sizes}).",
                hint="It was read from Keras and takes what the Keras model does, with channels where that has them.",
            )


def holder(part: nn.Module, role: str) -> tuple[Any, str]:
    """The module that has a tensor as an attribute, and the attribute's name."""
    path, _, attribute = role.rpartition(".")
    try:
        return (part.get_submodule(path) if path else part), attribute
    except AttributeError:
        return part, role


def build_part(node: Node, seed: int | None) -> nn.Module:
    """The module of a node; with a seed, it is initialised by the seed and its id."""
    if seed is None:
        return build_layer(node)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(derive_seed(seed, "layer", node.id))
        return build_layer(node)


def _path(node: Node) -> str:
    """Where a layer is in the model: the names of its parameters without their roles."""
    roles = {parameter.name: split_role(parameter.role)[0] for parameter in node.parameters}
    paths = {name.removesuffix(f".{role}") for name, role in roles.items() if name.endswith(f".{role}")}
    return paths.pop() if len(paths) == 1 else node.id


def _add_submodule(module: nn.Module, path: tuple[str, ...], part: nn.Module) -> bool:
    """Make a part a submodule at a path like `features.0`; False if the path is taken or cannot be one."""
    *folders, name = path
    at = module
    for folder in folders:
        if not folder or (hasattr(at, folder) and type(getattr(at, folder)) is not nn.Module):
            return False
        if not hasattr(at, folder):
            at.add_module(folder, nn.Module())
        at = getattr(at, folder)
    if not name or hasattr(at, name):
        return False
    at.add_module(name, part)
    return True


def _submodule(module: nn.Module, path: tuple[str, ...]) -> Any:
    for name in path:
        module = module._modules[name]  # type: ignore[assignment]
    return module


def _tie(module: NetworkModule) -> None:
    """Parameters of one name are one parameter."""
    first: dict[tuple[str, str], Any] = {}
    for part, parameter in module.expected():
        role, layout = split_role(parameter.role)
        owner, attribute = holder(part, role)
        tensor: Any = getattr(owner, attribute, None)
        known: Any = first.setdefault((parameter.name, layout), tensor)
        if tensor is not None and known is not tensor and known.shape == tensor.shape:
            setattr(owner, attribute, known)
