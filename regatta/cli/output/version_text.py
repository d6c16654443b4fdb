"""The output of `desc`: one version as tables and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from regatta import format as fmt
from regatta.cli.output.table import Cell, Table, left, right, sentences
from regatta.cli.output.version_tables import SHORT, git_text, heading

if TYPE_CHECKING:
    from regatta.repo.catalog.records import Link
    from regatta.repo.describe import Portrait
    from regatta.repo.inspect.distributions import Distribution
    from regatta.repo.inspect.layers import NetworkLayer

MAX_ROWS, MAX_FILES = 40, 20  # of layers or tensors, and of files, without --all
BINS = 16
IMPLIED = ("dims",)  # attributes that follow from shapes


def tables(found: Portrait, everything: bool = False) -> Iterator[Table]:
    """The parts of a description; empty parts are left out."""
    most, version = (None if everything else MAX_ROWS), found.description.version
    yield Table([left("", 0), sentences("", 0)], _facts(found), above=(heading(version, found.description.tags),))
    if version.hyperparameters:
        yield Table([left("", 0), sentences("", 0)], _named(version.hyperparameters), above=("Hyperparameters",))
    if version.metrics:
        yield _metrics(found)
    if found.layers:
        yield _network(found, most)
    if found.distributions:
        yield _weights(found.distributions, most)
    files = found.description.files
    if files:
        rows: list[list[Cell]] = [[file.path, fmt.size(file.bytes), (file.hash[:SHORT], "dim")] for file in files]
        yield Table([left("file", 0), right("size"), left("hash")], rows, above=("Files",)).cut(
            None if everything else MAX_FILES
        )


def as_json(found: Portrait) -> dict[str, Any]:
    known, version = found.description, found.description.version
    return {
        "version": {
            **version.fields("reference", "id", "name", "number", "created", "message", "metadata", "git"),
            **version.fields("hyperparameters", "config", "snapshots", "parameters", "bytes"),
            "stored_bytes": found.stored_bytes,
            "run": known.run.name if known.run else None,
            "tags": list(known.tags),
        },
        "metrics": {
            name: {**asdict(version.metrics[name]), "values": [[point.step, point.value] for point in points]}
            for name, points in groupby(known.metrics, key=lambda point: point.name)
        },
        "network": {"expression": found.expression, "layers": [asdict(layer) for layer in found.layers]},
        "snapshots": [snapshot.row() for snapshot in known.snapshots],
        "weights": {
            "snapshot": found.reference.label,
            "tensors": [{**asdict(tensor), "bytes": tensor.bytes} for tensor in found.distributions],
        },
        "files": [asdict(file) for file in known.files],
        "parents": [{**link.row(), "reference": found.names.get(link.base)} for link in known.parents],
        "children": [{**link.row(), "reference": found.names.get(link.derived)} for link in known.children],
    }


def _facts(found: Portrait) -> list[list[Cell]]:
    known, version = found.description, found.description.version
    facts: dict[str, Any] = {
        "message": version.message,
        "created": datetime.fromtimestamp(version.created).strftime("%Y-%m-%d %H:%M:%S"),
        "network": found.expression,
        "parameters": "" if version.parameters is None else f"{version.parameters:,}",
        "size": _sizes(found),
        "snapshots": _snapshots(found),
        "run": "" if known.run is None else f"{known.run.name} ({known.run.status}), configuration {version.config}",
        "git": "" if version.git is None else git_text(version.git, "with changes"),
        "parents": _related(found, known.parents, "base"),
        "children": _related(found, known.children, "derived"),
        **version.metadata,
    }
    return _named({name: value for name, value in facts.items() if value not in ("", None)})


def _sizes(found: Portrait) -> str:
    size = found.description.version.bytes
    if size is None:
        return ""
    stored = f", {fmt.size(found.stored_bytes)} stored" if found.stored_bytes is not None else ""
    return fmt.size(size) + stored


def _snapshots(found: Portrait) -> str:
    snapshots = found.description.snapshots
    if not snapshots:
        return "none"
    epochs = [snapshot.epoch for snapshot in snapshots if snapshot.epoch is not None]
    of = f", epochs {epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else f", epoch {epochs[0]}" if epochs else ""
    chosen = f"; this is {found.reference.label}" if found.reference.chosen else ""
    return f"{len(snapshots)}{of}{chosen}"


def _related(found: Portrait, links: Sequence[Link], end: str) -> str:
    texts = []
    for link in links[:8]:
        epoch = "" if link.epoch is None else f" after epoch {link.epoch}"
        kind = "" if link.kind == "derived" else f" ({link.kind}{epoch})"
        texts.append(f"{found.names.get(getattr(link, end), getattr(link, end)[:SHORT])}{kind}")
    return ", ".join(texts) + (f" and {len(links) - 8} more" if len(links) > 8 else "")


def _named(values: Mapping[str, Any]) -> list[list[Cell]]:
    return [[(name, "dim"), fmt.scalar(value)] for name, value in values.items()]


def _metrics(found: Portrait) -> Table:
    columns = [left("metric", 0), *(right(name) for name in ("lowest", "at", "highest", "at", "last")), left("")]
    series = {
        name: [point.value for point in points]
        for name, points in groupby(found.description.metrics, key=lambda point: point.name)
    }
    rows: list[list[Cell]] = [
        [
            name, fmt.metric(each.lowest), _step(each.lowest_step), fmt.metric(each.highest),
            _step(each.highest_step), fmt.metric(each.last), fmt.sparkline(series.get(name, []), 24),
        ]
        for name, each in found.description.version.metrics.items()
    ]  # fmt: skip
    return Table(columns, rows, above=("Metrics",))


def _step(step: int | None) -> str:
    return "" if step is None else str(step)


def _network(found: Portrait, most: int | None) -> Table:
    columns = [left("layer", 0), left("kind"), right("parameters"), left("shape"), sentences("")]
    rows: list[list[Cell]] = [
        [
            layer.name or layer.id, layer.kind, _weights_of(layer), shape_text(layer.shape),
            ", ".join(f"{name}={value_text(value)}" for name, value in layer.attributes.items() if name not in IMPLIED),
        ]
        for layer in found.layers
    ]  # fmt: skip
    return Table(columns, rows, above=(f"Network: {fmt.count(len(rows), 'layer')}",)).cut(most)


def _weights_of(layer: NetworkLayer) -> str:
    count = sum(math.prod(length or 1 for length in shape) for _, _, shape in layer.parameters)
    return f"{count:,}" if count else ""


def shape_text(shape: Iterable[int | None] | None) -> str:
    return "" if shape is None else "×".join("n" if size is None else str(size) for size in shape) or "scalar"


def value_text(value: Any) -> str:
    """A value; (3, 3) becomes 3, since most kernels are square."""
    if isinstance(value, list | tuple) and value:
        return value_text(value[0]) if len(set(map(str, value))) == 1 else "×".join(map(str, value))
    return fmt.scalar(value)


def _weights(tensors: Sequence[Distribution], most: int | None) -> Table:
    numbers = (right(name) for name in ("stored", "mean", "deviation"))
    columns = [left("tensor", 0), left("shape"), *numbers, left("distribution")]
    read = [tensor for tensor in tensors if not tensor.exact]
    note = (
        f"{read[0].planes} of {read[0].all_planes} bytes of each weight of large tensors were read: ± is the largest "
        "possible error, histograms are exact (--exact reads all bytes)"
        if read
        else ""
    )
    dtypes = Counter(tensor.dtype for tensor in tensors)
    usual = max(dtypes, key=lambda dtype: dtypes[dtype])
    title = f"Weights: {fmt.count(len(tensors), 'tensor')} of {usual}{' and others' if len(dtypes) > 1 else ''}"
    rows: list[list[Cell]] = [
        [
            tensor.name,
            shape_text(tensor.shape) + ("" if tensor.dtype == usual else f" {tensor.dtype}"),
            "" if tensor.stored_bytes is None else fmt.size(tensor.stored_bytes),
            str(tensor.mean),
            str(tensor.deviation),
            _distribution(tensor),
        ]
        for tensor in tensors
    ]
    return Table(columns, rows, above=(title,), below=(note,) if note else ()).cut(most)


def _distribution(tensor: Distribution) -> str:
    drawn = tensor.histogram
    remarks = [f"{tensor.nonfinite:,} not finite"] if tensor.nonfinite else []
    if drawn.below + drawn.above:
        remarks.append(
            f"{drawn.below + drawn.above:,} beyond, {tensor.least.middle:.3g} to {tensor.greatest.middle:.3g}"
        )
    if tensor.least.low == tensor.greatest.high:
        text = f"all are {tensor.least.low:.4g}"
    else:
        text = f"{drawn.edges[0]:>7.3g} {drawn.drawn(BINS)} {drawn.edges[-1]:.3g}" if drawn.counts else ""
    return "; ".join(part for part in (text, *remarks) if part)
