"""What versions differ in, as people see it: what `diff` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from regatta import format as fmt
from regatta.cli.output.table import Cell, Table, left, right, sentences
from regatta.cli.output.version_tables import SHORT
from regatta.cli.output.version_text import shape_text, value_text
from regatta.repo.diff import ABSENT, FIELDS, Comparison, Diff
from regatta.repo.inspect.layers import LayerDifference
from regatta.repo.inspect.parameters import ParameterDifference

BINS = 10  # of a histogram
MAX_CELL_LENGTH = 48  # characters of a value
STYLES = {"added": "green", "removed": "red", "changed": "yellow", "reshaped": "yellow", "rewired": "yellow"}
SIGNS = {"added": "+", "removed": "-", "changed": "~", "reshaped": "~", "rewired": "~", "same": "="}


def tables(found: Diff, everything: bool = False) -> Iterator[Table]:
    """A heading, then a table for each part that differs."""
    yield _heading(found)
    for name in FIELDS:
        shown = found.fields(name) if everything else found.fields(name).apart()
        if shown:
            columns = [left("", 0), *(left(label) for label in found.labels)]
            rows: list[list[Cell]] = [[(each.name, "dim"), *(_cell(v, name) for v in each.values)] for each in shown]
            yield Table(columns, rows, above=(name.capitalize(),))
    for other, comparison in zip(found.references[1:], found.comparisons, strict=True):
        of = f" of {found.labels[0]} and {other.label}" if len(found.labels) > 2 else ""
        missing = [each.label for each in (found.references[0], other) if each.version.network is None]
        yield from _comparison(comparison, of, everything, missing)


def _heading(found: Diff) -> Table:
    rows: list[list[Cell]] = [
        [
            (each.label, "bold"),
            (each.version.id[:SHORT], "dim"),
            datetime.fromtimestamp(each.version.created).strftime("%Y-%m-%d %H:%M"),
            "" if each.version.parameters is None else f"{each.version.parameters:,} parameters",
        ]
        for each in found.references
    ]
    below = ("They do not differ.",) if found.same else ()
    return Table([left("version", 0), left("id"), left("created"), left("")], rows, below=below)


def _comparison(each: Comparison, of: str, everything: bool, missing: Sequence[str]) -> Iterator[Table]:
    layers = [layer for layer in each.network.layers if everything or layer.what != "same"]
    if layers:
        expressions = tuple(
            f"{sign} {text}"
            for sign, text in (("-", each.network.left_expression), ("+", each.network.right_expression))
            if text is not None and each.network.left_expression != each.network.right_expression
        )
        columns = [left("", 0), left("layer", 0), left("kind"), sentences("")]
        same = f"{len(each.network.layers) - len(layers)} layers are the same" if not everything else ""
        notes = [f"{label} has no network recorded: its layers are unknown" for label in missing]
        below = (*notes, same) if same and not missing else tuple(notes)
        yield Table(columns, [_layer(layer) for layer in layers], (f"Network{of}", *expressions), below)
    tensors = [tensor for tensor in each.parameters if everything or tensor.what != "same"]
    if tensors:
        yield _weights(each, tensors, of, everything)


def _weights(each: Comparison, tensors: list[ParameterDifference], of: str, everything: bool) -> Table:
    numbers = (right(name) for name in ("distance", "relative", "moved"))
    columns = [left("", 0), left("tensor", 0), left("shape"), *numbers, left("distributions")]
    same = sum(tensor.what == "same" for tensor in each.parameters)
    notes = [f"{fmt.count(same, 'tensor')} {'is' if same == 1 else 'are'} the same, bit for bit"] if same else []
    partly = [tensor for tensor in tensors if 0 < tensor.planes < 4 and tensor.distance and not tensor.distance.exact]
    if partly:
        notes.append(
            f"from {partly[0].planes} bytes of each weight: ± is the largest possible error (--exact reads all bytes); "
            "moved is the share of weights in another bin"
        )
    return Table(
        columns, [_tensor(tensor) for tensor in tensors], (f"Weights{of}",), () if everything else tuple(notes)
    )


def _layer(layer: LayerDifference) -> list[Cell]:
    name = layer.left or layer.right or ""
    renamed = f"{name} -> {layer.right}" if layer.left and layer.right and layer.left != layer.right else name
    changes = ", ".join(f"{key} {value_text(a)} -> {value_text(b)}" for key, (a, b) in layer.changes.items())
    remark = "other operands" if layer.what == "rewired" else changes
    return [(SIGNS[layer.what], STYLES.get(layer.what, "")), renamed, layer.kind, remark]


def _tensor(tensor: ParameterDifference) -> list[Cell]:
    shapes = [shape_text(shape) for shape in tensor.shapes if shape is not None]
    renamed = tensor.left and tensor.right and tensor.left != tensor.right
    return [
        (SIGNS[tensor.what], STYLES.get(tensor.what, "")),
        f"{tensor.left} -> {tensor.right}" if renamed else tensor.name,
        " -> ".join(dict.fromkeys(shapes)),
        _distance(tensor),
        "" if tensor.relative is None else str(tensor.relative),
        "" if tensor.moved is None else f"{tensor.moved:.1%}",
        " ".join(histogram.drawn(BINS) for histogram in tensor.histograms if histogram is not None),
    ]


def _distance(tensor: ParameterDifference) -> str:
    """The norm of the difference; if the shapes differ, the two norms."""
    if tensor.distance is not None:
        return str(tensor.distance)
    known = [f"{norm.middle:.3g}" for norm in tensor.norms if norm is not None]
    return f"norm {' -> '.join(known)}" if known else ""


def _cell(value: Any, section: str) -> str:
    if value is ABSENT:
        return "-"
    if section == "files":
        return str(value)[:SHORT]
    text = fmt.metric(value) if section == "metrics" else _value_words(value)
    return text if len(text) <= MAX_CELL_LENGTH else text[: MAX_CELL_LENGTH - 1] + "…"


def _value_words(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return fmt.scalar(value)
