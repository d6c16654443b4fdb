"""Everything about one version, with the distributions of its weights: what `desc` and its page show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.errors import UsageError
from regatta.repo.catalog.records import Description, Records, Version, table_html
from regatta.repo.inspect.distributions import Distribution, describe_tensor
from regatta.repo.inspect.layers import NetworkLayer, expression_of, layers_of, read_network
from regatta.repo.inspect.parameters import distributions
from regatta.repo.references import ResolvedReference, resolve_reference
from regatta.repo.repo import Repo
from regatta.repo.snapshots import weights_of
from regatta.store.format.tensor_id import as_tensor
from regatta.store.slices import PartialTensor

MAX_CHANNELS, MAX_EDGE, MAX_STRIP = 8, 32, 256  # shown of an activation; the strip is for one without channels


@dataclass(frozen=True)
class Activation:
    """The output of a layer for an input: the distribution of its values, and images of the first sample.

    `maps` are some channels of an image, or one row of a vector. Large ones are made smaller.
    """

    layer: str
    distribution: Distribution
    zeros: float
    maps: tuple[NDArray[np.float32], ...] = field(repr=False)


@dataclass(frozen=True)
class Portrait:
    """A version at one snapshot: its metadata from the catalog, and the distributions of its weights."""

    description: Description
    reference: ResolvedReference
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
        """The bytes of the snapshot in the store, if each of its tensors is counted in full; others may share them."""
        sizes = [tensor.stored_bytes for tensor in self.distributions]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None

    def _repr_html_(self) -> str:
        """For notebooks: the metadata, then layers and weights, collapsed if there are many."""
        weights = [
            [
                ("tensor", each.name), ("shape", "×".join(map(str, each.shape))), ("mean", each.mean),
                ("deviation", each.deviation), ("norm", each.norm), ("distribution", each.histogram.drawn()),
            ]
            for each in self.distributions
        ]  # fmt: skip
        layers = [list(layer.row().items()) for layer in self.layers]
        return self.description._repr_html_() + _collapsible("layers", layers) + _collapsible("tensors", weights)


def _collapsible(title: str, rows: Sequence[Sequence[tuple[str, Any]]]) -> str:
    if not rows:
        return ""
    columns = list(dict.fromkeys(key for row in rows for key, _ in row))
    opened = " open" if len(rows) <= 12 else ""
    return f"<details{opened}><summary>{len(rows)} {title}</summary>{table_html(columns, rows)}</details>"


def describe(repo: Repo, version: Version) -> Description:
    catalog = repo.catalog
    with catalog.reading():
        return Description(
            version,
            tuple(tag.name for tag in catalog.tags(version)),
            catalog.network(version.network),
            catalog.snapshots(version),
            catalog.metrics(version),
            catalog.files(version),
            catalog.parents(version).links,
            catalog.children(version).links,
            catalog.run(version.run),
        )


def portrait(
    repo: Repo,
    reference: str | Version,
    *,
    exact: bool = False,
    look: bool = True,
    inputs: Mapping[str, Any] | None = None,
) -> Portrait:
    """A version with the distributions of its weights; without `look`, the weights are not read.

    `inputs` are arrays by the names of the network's inputs, or one under "". With inputs, the result has the
    activations of each layer.
    """
    resolved = resolve_reference(repo, reference)
    version = resolved.version
    description = describe(repo, version)
    related = [*repo.catalog.parents(version), *repo.catalog.children(version)]
    found: Records[Distribution] = Records()
    if look and resolved.snapshot is not None:
        weights = weights_of(repo, version, resolved.snapshot)
        names = _in_layer_order(weights.members, description.network)
        found = distributions(repo.store if repo.has_store else None, weights, names, exact)
    outputs = activations(repo, resolved, description.network, inputs) if inputs else {}
    return Portrait(description, resolved, {each.id: each.reference for each in related}, found, outputs)


def _in_layer_order(names: Iterable[str], network: Mapping[str, Any] | None) -> list[str]:
    """Names of tensors in the order of their layers; tensors without a layer come last."""
    known = dict.fromkeys(name for layer in layers_of(network) for _, name, _ in layer.parameters)
    there = list(names)
    return [*(name for name in known if name in set(there)), *(name for name in there if name not in known)]


def activations(
    repo: Repo, reference: ResolvedReference, network: Mapping[str, Any] | None, inputs: Mapping[str, Any]
) -> dict[str, Activation]:
    """The output of each layer for an input, by the id of its node."""
    graph = read_network(network)
    if graph is None or reference.snapshot is None:
        lacks = "network that can be run" if graph is None else "weights"
        raise UsageError(f"The version {reference.version.reference} has no {lacks}.", place=str(repo.folder))
    from regatta.network.torch.to_torch import watch

    weights = weights_of(repo, reference.version, reference.snapshot).read()
    found: dict[str, Activation] = {}

    def on_output(layer: str, value: NDArray[Any]) -> None:
        found[layer] = _activation(layer, value)

    watch(graph, weights, _ordered_inputs(graph.inputs, inputs), on_output)
    return found


def _ordered_inputs(wanted: Any, given: Mapping[str, Any]) -> list[Any]:
    """The inputs in the order of the network, by id or name; a single one needs no name."""
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
    numbers = np.ascontiguousarray(value)
    tensor = as_tensor("activation", numbers)
    whole = PartialTensor(tensor.dtype, tensor.shape, tensor.dtype.planes, tensor.words)
    zeros = float(np.mean(numbers == 0)) if numbers.size else 0.0
    return Activation(layer, describe_tensor(layer, whole), zeros, tuple(_maps(numbers)))


def _maps(value: NDArray[Any]) -> list[NDArray[np.float32]]:
    """Images of the first sample: channels of an image, else rows of a matrix or one row."""
    sample = np.asarray(value[0] if value.ndim > 1 else value, np.float32)
    if not sample.size:
        return []
    if sample.ndim >= 3:
        channels = sample.reshape(-1, *sample.shape[-2:])[:MAX_CHANNELS]
    else:
        channels = sample.reshape(1, -1, sample.shape[-1] if sample.ndim else 1)
    longest = MAX_EDGE if sample.ndim >= 3 else MAX_STRIP
    return [_downsample(channel, longest) for channel in channels]


def _downsample(channel: NDArray[np.float32], longest: int) -> NDArray[np.float32]:
    """Every n-th row and column, so that no edge is longer than `longest`."""
    rows, columns = (-(-size // longest) for size in channel.shape)
    return channel[:: max(1, rows), :: max(1, columns)]
