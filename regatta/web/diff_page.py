"""The page of `diff`: fields side by side, layers, and histograms over each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regatta.repo.diff import FIELDS, Comparison, Diff, Differences
from regatta.repo.inspect.parameters import ParameterDifference
from regatta.web.page_base import fill
from regatta.web.version_page import histogram_data, interval_data, network_data

STYLES = ("page.css", "report.css", "version.css")
SCRIPTS = ("page.js", "plots.js", "histograms.js", "graph.js", "differences.js")
VERSION = 1


def page(found: Diff) -> str:
    return fill("differences.html", " and ".join(found.labels), STYLES, SCRIPTS, page_data(found))


def page_data(found: Diff) -> dict[str, Any]:
    """The differences; equal items are counted."""
    return {
        "version": VERSION,
        "same": found.same,
        "versions": [
            {"label": each.label, "id": each.version.id, "created": each.version.created,
             "message": each.version.message, "parameters": each.version.parameters}
            for each in found.references
        ],
        "fields": {name: _fields(found.fields(name)) for name in FIELDS},
        "comparisons": [_comparison(each) for each in found.comparisons],
    }  # fmt: skip


def _fields(found: Differences) -> dict[str, Any]:
    apart = found.apart()
    rows = [[each.name, [_as_json(value) for value in each.values]] for each in apart]
    return {"rows": rows, "same": len(found) - len(apart)}


def _as_json(value: Any) -> Any:
    """Scalars as they are; lists and mappings as text."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return str(dict(value))
    return value if value is None or isinstance(value, bool | int | float | str) else "–"


def _comparison(each: Comparison) -> dict[str, Any]:
    layers = [layer for layer in each.network.layers if layer.what != "same"]
    tensors = [tensor for tensor in each.parameters if tensor.what != "same"]
    return {
        "expressions": [each.network.left_expression, each.network.right_expression],
        "layers": [
            {"what": n.what, "kind": n.kind, "left": n.left, "right": n.right,
             "changes": [[name, _as_json(_listed(a)), _as_json(_listed(b))] for name, (a, b) in n.changes.items()]}
            for n in layers
        ],
        "drawn": _drawn(each) if layers else None,
        "same_layers": len(each.network.layers) - len(layers),
        "tensors": [_tensor(tensor) for tensor in tensors],
        "same_tensors": len(each.parameters) - len(tensors),
    }  # fmt: skip


def _drawn(each: Comparison) -> dict[str, Any] | None:
    """The network of the other version; each box has the change of its layers."""
    drawn = network_data(each.layers)
    if drawn is None or not drawn["boxes"]:
        return None
    changes = {layer.right: layer.what for layer in each.network.layers if layer.right is not None}
    for box in drawn["boxes"]:
        first, *behind = (changes.get(id, "same") for id in box["members"])
        box["what"] = "changed" if first == "same" and set(behind) - {"same"} else first
    return drawn


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _tensor(tensor: ParameterDifference) -> dict[str, Any]:
    return {
        "what": tensor.what, "left": tensor.left, "right": tensor.right, "shapes": tensor.shapes,
        "planes": tensor.planes, "norms": [interval_data(norm) for norm in tensor.norms],
        "distance": interval_data(tensor.distance), "relative": interval_data(tensor.relative), "moved": tensor.moved,
        "histograms": [histogram_data(each) for each in tensor.histograms],
    }  # fmt: skip
