"""A runnable torch.nn.Module from a network, with the same layers; it loads weights by their names."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from regatta.errors import DataError, UsageError, nearest
from regatta.network.axis_order import KERAS, in_torch_order
from regatta.network.graph import Network, Parameter, arranged, split_role, stored_axes

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from regatta.network.torch.network_module import NetworkModule


@dataclass(frozen=True)
class LoadedWeights:
    """What became of weights: parameters that took them, that were initialised, and weights that none has."""

    kept: tuple[str, ...]
    new: tuple[str, ...]
    dropped: tuple[str, ...]


def to_torch(
    network: Network,
    weights: Mapping[str, Any] | None = None,
    *,
    missing: Literal["error", "initialise"] = "error",
    seed: int | None = None,
) -> NetworkModule:
    """A module with the layers of the network and, with `weights` (tensors or arrays by name), those of the model.

    Its forward takes the inputs in the order of the network's INPUT nodes; several outputs are a tuple. With
    `missing="initialise"`, parameters whose weights are missing or have another shape are initialised by the seed.
    """
    from regatta.network.torch.network_module import NetworkModule

    of_keras, network = network.source.startswith(KERAS), in_torch_order(network)
    _refuse_unknown(network)
    module = NetworkModule(network, seed if seed is not None or missing == "error" else 0, has_fixed_inputs=of_keras)
    if weights is not None:
        load_weights(module, weights, missing=missing)
    return module


def load_weights(
    module: NetworkModule, weights: Mapping[str, Any], *, missing: Literal["error", "initialise"] = "error"
) -> LoadedWeights:
    """Load weights into a module of `to_torch`, by the names of the network's parameters; says what became of them."""
    import torch

    if missing not in ("error", "initialise"):
        raise UsageError(f"missing is {missing!r:.80}; it is 'error' or 'initialise'.")
    kept: dict[str, bool] = {}
    with torch.no_grad():
        for part, parameter in module.expected():
            fits = missing == "error" or _fits(weights.get(parameter.name), parameter)
            kept[parameter.name] = fits
            if fits:
                _put(part, parameter, weights)
    new = tuple(name for name, fits in kept.items() if not fits)
    if new:
        _match_type(module, set(new))
    dropped = tuple(name for name in weights if name not in kept)
    return LoadedWeights(tuple(name for name, fits in kept.items() if fits), new, dropped)


def _match_type(module: NetworkModule, new: Collection[str]) -> None:
    """Give initialised tensors the floating type of the others, or else the layers could not be run together."""
    from regatta.network.torch.network_module import holder

    places = [(*holder(part, split_role(parameter.role)[0]), parameter.name) for part, parameter in module.expected()]
    tensors = [(getattr(owner, attribute), name) for owner, attribute, name in places]
    kind = common_type(tensor for tensor, name in tensors if name not in new)
    for tensor, name in tensors:
        if name in new and kind is not None and tensor.is_floating_point():
            tensor.data = tensor.data.to(kind)


def common_type(tensors: Iterable[torch.Tensor]) -> torch.dtype | None:
    """The floating type that most of the tensors have; None if none of them has one."""
    kinds = Counter(tensor.dtype for tensor in tensors if tensor.is_floating_point())
    return kinds.most_common(1)[0][0] if kinds else None


def weights_of(module: NetworkModule) -> dict[str, torch.Tensor]:
    """The weights of a module of `to_torch` by the names of the network's parameters: the inverse of load_weights."""
    return {parameter.name: stored_tensor(part, parameter) for part, parameter in module.expected()}


def stored_tensor(part: nn.Module, parameter: Parameter) -> torch.Tensor:
    """A tensor of a layer with its axes in the order in which the parameter is stored."""
    from regatta.network.torch.network_module import holder

    role, layout = split_role(parameter.role)
    owner, attribute = holder(part, role)
    tensor: torch.Tensor = getattr(owner, attribute).detach()
    if layout == "flat":
        return tensor.reshape([size or 1 for size in parameter.shape])
    if not layout:
        return tensor
    order = stored_axes(layout, len(parameter.shape))
    tensor = tensor.reshape([parameter.shape[axis] or 1 for axis in order])
    return tensor.permute([order.index(axis) for axis in range(len(order))])


def _fits(given: Any, parameter: Parameter) -> bool:
    shape = getattr(given, "shape", None)
    return (
        shape is not None
        and len(shape) == len(parameter.shape)
        and all(size in (None, there) for size, there in zip(parameter.shape, shape, strict=True))
    )


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

    run = module.network
    steps = [id for id in run.order if run.by_id[id].kind != "INPUT"]
    for id, part in zip(steps, module.parts, strict=True):
        if id in network.by_id:
            part.register_forward_hook(shown(id))
    tensors = [torch.as_tensor(array) for array in inputs]
    tensors = [tensor.to(kind) if tensor.is_floating_point() else tensor for tensor in tensors]
    for node, tensor in zip(network.inputs, tensors, strict=False):
        see(node.id, _as_array(tensor))
    _run(module, tensors)


def _run(module: NetworkModule, tensors: Sequence[torch.Tensor]) -> Any:
    import torch

    with torch.no_grad():
        try:
            return module(*tensors)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            wanted = ", ".join(str(node.shape) for node in module.network.inputs if node.shape is not None)
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
    parts = [_run(module, [torch.from_numpy(x[at : at + batch])]).numpy() for at in range(0, len(x), batch)]
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


def _put(part: nn.Module, parameter: Parameter, weights: Mapping[str, Any]) -> None:
    import torch

    from regatta.network.torch.network_module import holder

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
    given = arranged(given, layout)
    owner, attribute = holder(part, role)
    held = getattr(owner, attribute, None)
    if not isinstance(held, torch.Tensor):
        raise DataError(f"A layer of the network has no {role!r} for {parameter.name!r}.")
    if held.shape != given.shape:
        raise DataError(f"{parameter.name!r} has the shape {tuple(given.shape)}, its layer {tuple(held.shape)}.")
    held.data = held.data.to(given.dtype)  # keep the stored type
    held.copy_(given)
