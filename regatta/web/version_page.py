"""The page of `desc`: the network, histograms of weights, curves of metrics, and activations for an input."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from regatta.web.graph_layout import HEIGHT, arrange, fold
from regatta.web.page_base import fill, rounded

if TYPE_CHECKING:
    from regatta.repo.catalog.records import MetricPoint
    from regatta.repo.describe import Portrait
    from regatta.repo.inspect.distributions import Distribution, Histogram, Interval
    from regatta.repo.inspect.layers import NetworkLayer

STYLES = ("page.css", "report.css", "version.css")
SCRIPTS = ("page.js", "plots.js", "histograms.js", "graph.js", "version.js")
VERSION = 1
MAX_NODES = 2000  # of a drawing
MAX_TENSORS = 1000
MAX_POINTS = 600  # of a curve
LETTER, MARGIN, NARROWEST, WIDEST = 7.4, 30, 96, 280  # of boxes
SIZES = ("out", "features", "heads", "count", "hidden", "output", "p", "axis", "function", "type")


def page(found: Portrait) -> str:
    return fill("version.html", found.reference.label, STYLES, SCRIPTS, page_data(found))


def page_data(found: Portrait) -> dict[str, Any]:
    known, version = found.description, found.description.version
    return {
        "version": VERSION,
        "name": found.reference.label,
        "id": version.id,
        "created": version.created,
        "message": version.message,
        "tags": list(known.tags),
        "facts": _facts(found),
        "hyperparameters": version.hyperparameters,
        "metadata": version.metadata,
        "metrics": _metrics(known.metrics),
        "network": network_data(found.layers),
        "tensors": [tensor_data(tensor) for tensor in found.distributions[:MAX_TENSORS]],
        "tensors_left": max(0, len(found.distributions) - MAX_TENSORS),
        "activations": {
            layer: {**tensor_data(each.distribution), "zeros": rounded(each.zeros), "maps": _pictures(each.maps)}
            for layer, each in found.activations.items()
        },
        "snapshots": [snapshot.row() for snapshot in known.snapshots],
        "shown": None if found.reference.snapshot is None else found.reference.snapshot.position,
        "files": [{"path": file.path, "bytes": file.bytes, "hash": file.hash} for file in known.files],
        "lineage": _lineage(found),
    }


def network_data(layers: Sequence[NetworkLayer]) -> dict[str, Any] | None:
    """Layers and their layout; None without layers, and no layout if there are too many."""
    if not layers:
        return None
    nodes = {layer.id: asdict(layer) for layer in layers}
    if len(layers) > MAX_NODES:
        return {"nodes": nodes, "boxes": [], "lines": [], "width": 0, "height": 0}
    titles = {layer.id: title(layer) for layer in layers}
    kinds, sources = {layer.id: layer.kind for layer in layers}, {layer.id: layer.sources for layer in layers}
    widths = {id: 0.0 for id in nodes}
    for first, *rest in fold(kinds, sources):
        name = (nodes[first]["name"] or first) + "".join(f" · {kinds[id]}" for id in rest)
        letters = max(len(titles[first]), 0.9 * len(name))
        widths[first] = min(WIDEST, max(NARROWEST, MARGIN + LETTER * letters))
    drawing = arrange(kinds, sources, widths)
    boxes = [
        {
            "members": list(box.members), "title": titles[box.members[0]], "x": round(box.x, 1), "y": box.y,
            "width": box.width, "height": HEIGHT,
        }
        for box in drawing.boxes
    ]  # fmt: skip
    lines = [
        [line.source, line.target, line.operand, line.operands,
         [[round(drawing.places[lane].x, 1), drawing.places[lane].y] for lane in line.lanes]]
        for line in drawing.lines
    ]  # fmt: skip
    return {"nodes": nodes, "boxes": boxes, "lines": lines, "width": drawing.width, "height": drawing.height}


def title(layer: NetworkLayer) -> str:
    """A layer in a few words: its kind and its sizes."""
    known = layer.attributes
    words = [short(known[name]) for name in SIZES if name in known]
    if "kernel" in known:
        kernel = known["kernel"]
        words.append("×".join(map(str, kernel)) if isinstance(kernel, list | tuple) else str(kernel))
    if "stride" in known and short(known["stride"]) not in ("1", ""):
        words.append(f"/{short(known['stride'])}")
    return " ".join([layer.kind, *words])


def short(value: Any) -> str:
    """2 for [2, 2]."""
    if isinstance(value, list | tuple):
        return str(value[0]) if value and len(set(map(str, value))) == 1 else "×".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def histogram_data(found: Histogram | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def interval_data(found: Interval | None) -> list[float | None] | None:
    return None if found is None else [rounded(found.low), rounded(found.high)]


def tensor_data(tensor: Distribution) -> dict[str, Any]:
    intervals = {
        name: interval_data(getattr(tensor, name)) for name in ("least", "greatest", "mean", "deviation", "norm")
    }
    return {
        "name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "count": tensor.count,
        "bytes": tensor.bytes, "stored": tensor.stored_bytes, "encoding": tensor.encoding, "planes": tensor.planes,
        "all_planes": tensor.all_planes, "nonfinite": tensor.nonfinite, **intervals,
        "histogram": histogram_data(tensor.histogram),
    }  # fmt: skip


def _facts(found: Portrait) -> dict[str, Any]:
    known, version = found.description, found.description.version
    facts = {
        "network": found.expression,
        "parameters": version.parameters,
        "bytes": version.bytes,
        "stored": found.stored_bytes,
        "snapshots": version.snapshots,
        "run": known.run.name if known.run else None,
        "git": version.git["commit"][:10] if version.git else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _metrics(points: Sequence[MetricPoint]) -> dict[str, Any]:
    found = {}
    for name, each in groupby(points, key=lambda point: point.name):
        listed = list(each)
        step = -(-len(listed) // MAX_POINTS)
        kept = listed if step == 1 else [*listed[:-1:step], listed[-1]]
        found[name] = {"points": [[point.step, rounded(point.value)] for point in kept], "count": len(listed)}
    return found


def _pictures(maps: Sequence[Any]) -> list[dict[str, Any]]:
    """Numbers as bytes, scaled from the lowest to the highest of all maps of the layer."""
    if not maps:
        return []
    flat = np.concatenate([each.ravel() for each in maps])
    finite = flat[np.isfinite(flat)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    span = (high - low) or 1.0
    pictures = []
    for each in maps:
        levels = np.nan_to_num(np.clip((each.astype(np.float64) - low) / span, 0, 1) * 255).astype(np.uint8)
        data = base64.b64encode(levels.tobytes()).decode()
        pictures.append({"rows": each.shape[0], "columns": each.shape[1], "levels": data})
    return pictures


def _lineage(found: Portrait) -> list[dict[str, Any]]:
    known = found.description
    related = [("parent", link.base, link) for link in known.parents]
    related += [("child", link.derived, link) for link in known.children]
    return [
        {"what": what, "name": found.names.get(id, id[:10]), "kind": link.kind, "epoch": link.epoch}
        for what, id, link in related
    ]
