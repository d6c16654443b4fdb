"""A runnable torch.nn.Module from a network, with the same layers; it loads weights by their names."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regatta.errors import DataError, UsageError, nearest
from regatta.network.graph import Network, Parameter

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn


def to_torch(network: Network, weights: Mapping[str, Any] | None = None) -> nn.Module:
    """A module with the layers of the network and, with `weights` (tensors or arrays by name), those of the model.

    Its forward takes the inputs in the order of the network's INPUT nodes; several outputs are a tuple.
    """
    _refuse_unknown(network)
    module = _runnable(network)
    if weights is not None:
        load_weights(module, weights)
    return module


def load_weights(module: nn.Module, weights: Mapping[str, Any]) -> None:
    """Load weights into a module of `to_torch`, by the names of the network's parameters. Others are ignored."""
    import torch

    with torch.no_grad():
        for node, parameter in module.expected():  # type: ignore[operator]
            _put(module, node, parameter, weights)


def watch(network: Network, weights: Mapping[str, Any], inputs: Sequence[Any], see: Callable[[str, Any], None]) -> None:
    """Run a network once on arrays, and pass on the output of each layer: its id and an array. Nothing is kept.

    Outputs that are not a single tensor, such as those of a split, are left out.
    """
    import torch

    module = to_torch(network, weights).eval()
    kinds = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    kind = kinds.pop() if len(kinds) == 1 else torch.float32

    def shown(id: str) -> Callable[..., None]:
        return lambda part, given, result: see(id, _as_array(result)) if isinstance(result, torch.Tensor) else None

    steps = [id for id in network.order if network.by_id[id].kind != "INPUT"]
    for id, part in zip(steps, module.parts, strict=True):  # type: ignore[arg-type]
        part.register_forward_hook(shown(id))
    tensors = [torch.as_tensor(array) for array in inputs]
    tensors = [tensor.to(kind) if tensor.is_floating_point() else tensor for tensor in tensors]
    for node, tensor in zip(network.inputs, tensors, strict=False):
        see(node.id, _as_array(tensor))
    with torch.no_grad():
        try:
            module(*tensors)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            wanted = ", ".join(str(node.shape) for node in network.inputs if node.shape is not None)
            raise UsageError(
                f"The network does not run on an input of shape {shapes}: {error}.",
                hint=f"It takes {wanted}." if wanted else "The first axis is that of samples.",
            ) from error


def _as_array(tensor: torch.Tensor) -> Any:
    import torch

    plain = tensor.detach().cpu()
    return (plain.to(torch.float32) if plain.dtype in (torch.bfloat16, torch.float16) else plain).numpy()


def outputs(network: Network, weights: Mapping[str, Any], x: NDArray[Any], batch: int = 256) -> NDArray[Any]:
    """The outputs of the model in evaluation mode: one output for one input, as arrays, batch by batch."""
    import numpy as np
    import torch

    module = to_torch(network, weights).eval()
    with torch.no_grad():
        parts = [module(torch.from_numpy(x[at : at + batch])).numpy() for at in range(0, len(x), batch)]
    return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)


def _refuse_unknown(network: Network) -> None:
    from regatta.network.torch.layers import can_build

    wrong = [node for node in network.nodes if not can_build(node)]
    if not wrong:
        return
    said = [f"{node.id} ({node.get('type') or node.kind})" for node in wrong[:8]]
    raise UsageError(
        f"{len(wrong)} of the network's layers cannot be built in PyTorch: {', '.join(map(str, said))}"
        f"{', ...' if len(wrong) > 8 else ''}.",
        hint="A slice of the network without them can: network.slice(start, end).",
    )


def _runnable(network: Network) -> nn.Module:
    from torch import nn

    from regatta.network.torch.layers import build_layer

    class NetworkModule(nn.Module):
        """The layers of a network, called in its order."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network
            self.parts = nn.ModuleList(build_layer(node) for node in steps)
            _tie(self)

        def forward(self, *inputs: torch.Tensor) -> Any:
            if len(inputs) != len(network.inputs):
                raise UsageError(f"The network takes {len(network.inputs)} inputs, not {len(inputs)}.")
            values: dict[str, Any] = dict(zip((node.id for node in network.inputs), inputs, strict=True))
            left = Counter(uses)
            for node, part in zip(steps, self.parts, strict=True):
                sources = network.sources[node.id]
                values[node.id] = part(*(values[source] for source in sources))
                for source in sources:
                    left[source] -= 1
                    if not left[source]:
                        del values[source]  # free outputs that are no longer needed
            results = tuple(values[node.id] for node in steps if node.kind == "OUTPUT")
            return results[0] if len(results) == 1 else results

        def expected(self) -> list[tuple[int, Parameter]]:
            """Every parameter, with the part that it belongs to."""
            return [(place, p) for place, node in enumerate(steps) for p in node.parameters]

    steps = [network.by_id[id] for id in network.order if network.by_id[id].kind != "INPUT"]
    uses = Counter(edge.source for edge in network.edges)
    return NetworkModule()


def _tie(module: Any) -> None:
    """Parameters of one name are one parameter."""
    first: dict[tuple[str, str], Any] = {}
    for place, parameter in module.expected():
        role, layout = split_role(parameter.role)
        holder, attribute = _holder(module.parts[place], role)
        tensor: Any = getattr(holder, attribute, None)
        known: Any = first.setdefault((parameter.name, layout), tensor)
        if tensor is not None and known is not tensor and known.shape == tensor.shape:
            setattr(holder, attribute, known)


def split_role(role: str) -> tuple[str, str]:
    """`weight@10` is stored with permuted axes: PyTorch's is stored.permute(1, 0). `bias@flat` has axes of length 1."""
    role, _, layout = role.partition("@")
    return role, layout


def _holder(part: nn.Module, role: str) -> tuple[Any, str]:
    path, _, attribute = role.rpartition(".")
    try:
        return (part.get_submodule(path) if path else part), attribute
    except AttributeError:
        return part, role


def _put(module: Any, place: int, parameter: Parameter, weights: Mapping[str, Any]) -> None:
    import torch

    if parameter.name not in weights:
        raise DataError(
            f"The weights do not have {parameter.name!r}, which the network needs.",
            candidates=nearest(parameter.name, weights),
        )
    with warnings.catch_warnings():  # a mapped file is read-only, and the module has its own copy
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        given = torch.as_tensor(weights[parameter.name])
    if given.dim() != len(parameter.shape) or any(
        s not in (None, g) for s, g in zip(parameter.shape, given.shape, strict=True)
    ):
        raise DataError(f"{parameter.name!r} has the shape {tuple(given.shape)}; the network says {parameter.shape}.")
    role, layout = split_role(parameter.role)
    given = given.reshape(-1) if layout == "flat" else given.permute(*map(int, layout)) if layout else given
    holder, attribute = _holder(module.parts[place], role)
    held = getattr(holder, attribute, None)
    if not isinstance(held, torch.Tensor):
        raise DataError(f"A layer of the network has no {role!r} for {parameter.name!r}.")
    if held.shape != given.shape:
        raise DataError(f"{parameter.name!r} has the shape {tuple(given.shape)}, its layer {tuple(held.shape)}.")
    held.data = held.data.to(given.dtype)  # keep the stored type
    held.copy_(given)
