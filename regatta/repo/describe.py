"""All of one version, its weights looked at: what `desc` and its page show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from regatta.errors import UsageError
from regatta.repo.catalog.records import (
    Description,
    Records,
    Version,
    table_html,
)
from regatta.repo.inspect.distributions import Distribution, describe_tensor
from regatta.repo.inspect.layers import (
    NetworkLayer,
    expression_of,
    layers_of,
    read_network,
)
from regatta.repo.inspect.parameters import distributions
from regatta.repo.references import ResolvedReference, resolve_reference
from regatta.repo.snapshots import weights_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from regatta.repo.repo import Repo
    from regatta.store.slices import PartialTensor

MAPS, EDGE, STRIP = 8, 32, 256  # channels of an activation, their greatest length, and that of one without channels


@dataclass(frozen=True)
class Activation:
    """What a layer gave for an input: how its numbers are distributed, and pictures of the first sample of them.

    `maps` are rows of numbers, some channels of an image or one row of a vector, made smaller where they are large.
    """

    layer: str
    distribution: Distribution
    zeros: float
    maps: tuple[NDArray[np.float32], ...] = field(repr=False)


@dataclass(frozen=True)
class Portrait:
    """A version at one snapshot: what the catalog knows, and what its weights are like."""

    description: Description
    side: ResolvedReference
    names: Mapping[str, str]  # references of parents and children, by id
    distributions: Records[Distribution]
    activations: Mapping[str, Activation] = field(default_factory=dict)

    @cached_property
    def layers(self) -> Records[NetworkLayer]:
        return layers_of(self.description.network)

    @cached_property
    def expression(self) -> str | None:
        return expression_of(self.description.network)

    @property
    def stored_bytes(self) -> int | None:
        """What the snapshot takes in the store, each tensor alone; others may share it."""
        sizes = [tensor.stored_bytes for tensor in self.distributions]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None

    def _repr_html_(self) -> str:
        """For notebooks: what is known, then layers and weights, folded where they are many."""
        weights = [
            [
                ("tensor", each.name), ("shape", "×".join(map(str, each.shape))), ("mean", each.mean),
                ("deviation", each.deviation), ("norm", each.norm), ("distribution", each.histogram.drawn()),
            ]
            for each in self.distributions
        ]  # fmt: skip
        layers = [list(layer.row().items()) for layer in self.layers]
        return self.description._repr_html_() + _folded("layers", layers) + _folded("tensors", weights)


def _folded(title: str, rows: Sequence[Sequence[tuple[str, Any]]]) -> str:
    if not rows:
        return ""
    columns = list(dict.fromkeys(key for row in rows for key, _ in row))
    opened = " open" if len(rows) <= 12 else ""
    return f"<details{opened}><summary>{len(rows)} {title}</summary>{table_html(columns, rows)}</details>"


def portrait(
    repo: Repo,
    reference: str | Version,
    *,
    exact: bool = False,
    look: bool = True,
    inputs: Mapping[str, Any] | None = None,
) -> Portrait:
    """A version with the distributions of its weights, unless they are not to be looked at.

    `inputs` are arrays by the names of the network's inputs, or one under "": then also what each layer makes of them.
    """
    side = resolve_reference(repo, reference)
    description = repo.describe(side.version)
    related = [*repo.catalog.parents(side.version), *repo.catalog.children(side.version)]
    found: Records[Distribution] = Records()
    if look and side.snapshot is not None:
        weights = weights_of(repo, side.version, side.snapshot)
        names = _in_order(weights.members, description.network)
        found = distributions(repo.store if repo.has_store else None, weights, names, exact)
    seen = activations(repo, side, description.network, inputs) if inputs else {}
    return Portrait(description, side, {each.id: each.reference for each in related}, found, seen)


def _in_order(names: Iterable[str], network: Mapping[str, Any] | None) -> list[str]:
    """Names of tensors in the order of the layers that have them; those of none come last."""
    known = dict.fromkeys(name for layer in layers_of(network) for _, name, _ in layer.parameters)
    there = list(names)
    return [*(name for name in known if name in set(there)), *(name for name in there if name not in known)]


def activations(
    repo: Repo, side: ResolvedReference, network: Mapping[str, Any] | None, inputs: Mapping[str, Any]
) -> dict[str, Activation]:
    """What each layer gives for an input, by the id of its node."""
    graph = read_network(network)
    if graph is None or side.snapshot is None:
        lacks = "network that can be run" if graph is None else "weights"
        raise UsageError(f"The version {side.version.reference} has no {lacks}.", place=str(repo.folder))
    from regatta.network.torch.to_torch import watch

    weights = weights_of(repo, side.version, side.snapshot).read()
    found: dict[str, Activation] = {}

    def see(layer: str, value: NDArray[Any]) -> None:
        found[layer] = _activation(layer, value)

    watch(graph, weights, _ordered(graph.inputs, inputs), see)
    return found


def _ordered(wanted: Any, given: Mapping[str, Any]) -> list[Any]:
    """The inputs in the order of the network's, by id or name; a single one needs no name."""
    if set(given) == {""} and len(wanted) == 1:
        return [given[""]]
    by_name = {name: node for node in wanted for name in (node.id, node.name) if name}
    unknown = [name for name in given if name not in by_name]
    missing = [node.id for node in wanted if node.id not in given and node.name not in given]
    if unknown or missing:
        names = ", ".join(node.id for node in wanted)
        raise UsageError(
            f"The inputs given are {', '.join(map(repr, given))}; the network takes {names}.",
            hint="One array in a .npy file, or arrays by these names in a .npz file.",
        )
    return [given[node.id] if node.id in given else given[node.name] for node in wanted]


def _activation(layer: str, value: NDArray[Any]) -> Activation:
    import numpy as np

    numbers = np.ascontiguousarray(value)
    return Activation(
        layer, describe_tensor(layer, _whole(numbers)), float(np.mean(numbers == 0)) if numbers.size else 0.0,
        tuple(_maps(numbers)),
    )  # fmt: skip


def _whole(value: NDArray[Any]) -> PartialTensor:
    from regatta.store.format.tensor_id import as_tensor
    from regatta.store.slices import PartialTensor

    tensor = as_tensor("activation", value)
    return PartialTensor(tensor.dtype, tensor.shape, tensor.dtype.planes, tensor.words)


def _maps(value: NDArray[Any]) -> list[NDArray[np.float32]]:
    """Pictures of the first sample: channels of an image, else rows of a matrix or one row."""
    import numpy as np

    sample = np.asarray(value[0] if value.ndim > 1 else value, np.float32)
    if not sample.size:
        return []
    if sample.ndim >= 3:
        channels = sample.reshape(-1, *sample.shape[-2:])[:MAPS]
    else:
        channels = sample.reshape(1, -1, sample.shape[-1] if sample.ndim else 1)
    longest = EDGE if sample.ndim >= 3 else STRIP
    return [_smaller(channel, longest) for channel in channels]


def _smaller(channel: NDArray[np.float32], longest: int) -> NDArray[np.float32]:
    """Every so many rows and columns."""
    rows, columns = (-(-size // longest) for size in channel.shape)
    return channel[:: max(1, rows), :: max(1, columns)]
