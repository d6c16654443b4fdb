"""The network of a version up to its logits, and data in the form that the network takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.errors import DataError, UsageError
from regatta.network.axis_order import in_torch_order
from regatta.network.graph import Edge, Network, Node
from regatta.network.json_form import from_json
from regatta.repo.catalog.networks import canonical_json
from regatta.repo.catalog.records import Version
from regatta.repo.repo import Repo
from regatta.repo.snapshots import folder_of_run


def evaluated_network(repo: Repo, version: Version) -> Network:
    """The network with one input and one output, without a softmax at its end."""
    stored = repo.network(version)
    if stored is None:
        run = repo.catalog.run(version.run)
        by_hand = (
            "Commit it with one: `regatta add model.onnx`, or in Python "
            "`from regatta import network; repo.commit(..., network=network.from_torch(model, example_input))`."
        )
        raise UsageError(
            f"The version {version.reference} has no network, so it cannot be evaluated.",
            hint=by_hand
            if run is None or folder_of_run(repo, run) is None
            else f"Record the networks of its run: regatta commit --run {run.name} --networks",
        )
    try:
        network = from_json(canonical_json(stored, "network"))
    except DataError as error:
        raise UsageError(
            f"The network of {version.reference} cannot be run: {error.message}",
            hint="Commit one that regatta.network has read: from_torch, from_keras or from_onnx.",
        ) from error
    outputs = [node for node in network.nodes if node.kind == "OUTPUT"]
    if len(network.inputs) != 1 or len(outputs) != 1 or len(network.sources[outputs[0].id]) != 1:
        raise UsageError(
            f"The network of {version.reference} has {len(network.inputs)} inputs and {len(outputs)} outputs.",
            hint="Networks with one input and one output can be evaluated.",
        )
    return in_torch_order(_without_softmax(network, outputs[0]))


def _takes_integers(network: Network) -> bool:
    given = network.inputs[0]
    return "int" in str(given.get("dtype") or "") or any(
        network.by_id[target].kind == "EMBED" for target in network.targets[given.id]
    )


def _without_softmax(network: Network, output: Node) -> Network:
    """The network without a softmax at its end, which does not change the order of classes."""
    last = network.by_id[network.sources[output.id][0]]
    if last.kind != "SOFTMAX" or len(network.targets[last.id]) > 1 or last.get("axis") not in (1, -1):
        return network
    before = network.sources[last.id][0]
    nodes = tuple(node for node in network.nodes if node.id != last.id)
    kept = tuple(edge for edge in network.edges if last.id not in (edge.source, edge.target))
    return replace(network, nodes=nodes, edges=(*kept, Edge(before, output.id)))


def inputs_for(network: Network, x: Any, wide: bool) -> NDArray[Any]:
    """The inputs as the network takes them: integers, float32, or float64 if its weights are float64."""
    values = np.asarray(x)
    if values.dtype.kind not in "fiub" or values.ndim < 1:
        raise DataError(f"x is {values.dtype} of the shape {values.shape}; rows of numbers are expected.")
    if _takes_integers(network):
        if values.dtype.kind == "f" and not (values == np.floor(values)).all():
            raise DataError("The network takes whole numbers, and x has fractions.")
        values = values.astype(np.int64)
    else:
        values = values.astype(np.float64 if wide else np.float32)
    return np.ascontiguousarray(_fit_shape(network.inputs[0], values))


def _fit_shape(given: Node, values: NDArray[Any]) -> NDArray[Any]:
    """The inputs in the shape of the network; axes of length 1 may be added or removed."""
    if given.shape is None:
        return values
    wanted, found = given.shape[1:], values.shape[1:]
    if len(wanted) == len(found) and all(w in (None, f) for w, f in zip(wanted, found, strict=True)):
        return values
    if None not in wanted and [w for w in wanted if w != 1] == [f for f in found if f != 1]:
        return values.reshape(len(values), *[w for w in wanted if w is not None])
    sizes = ", ".join("any" if size is None else str(size) for size in wanted)
    raise DataError(
        f"x has the shape {values.shape}; the network takes rows of the shape ({sizes}).",
        hint="The first axis counts the inputs.",
    )


def targets_for(y: Any, count: int) -> NDArray[np.int64] | None:
    if y is None:
        return None
    values = np.asarray(y)
    whole = values.dtype.kind in "iub" or (values.dtype.kind == "f" and bool((values == np.floor(values)).all()))
    if values.shape != (count,) or not whole:
        raise DataError(
            f"y is {values.dtype} of the shape {values.shape}; {count} class numbers are expected, one for each input."
        )
    return values.astype(np.int64)
