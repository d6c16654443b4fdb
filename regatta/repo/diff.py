"""Compares versions: their metadata, networks, weights, metrics and files.

The first of two or more versions is what the others are compared with. The result holds equal fields as well; what is
shown to people leaves them out by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from regatta.errors import UsageError
from regatta.repo.catalog.records import Records, Version, data_frame, table_html
from regatta.repo.inspect.layers import NetworkDifference, NetworkLayer, compare_networks, layers_of
from regatta.repo.inspect.parameters import ParameterDifference, compare_weights
from regatta.repo.references import ResolvedReference, resolve_reference
from regatta.repo.snapshots import weights_of

if TYPE_CHECKING:
    import pandas as pd

    from regatta.repo.repo import Repo

FIELDS = ("metadata", "hyperparameters", "metrics", "files")


class Absent:
    """Stands for a value that a version lacks; None is a value."""

    def __repr__(self) -> str:
        return "-"

    def __bool__(self) -> bool:
        return False


ABSENT = Absent()


@dataclass(frozen=True)
class Difference:
    """One field, with its value in each version; ABSENT if a version lacks it."""

    name: str
    values: tuple[Any, ...]

    @property
    def same(self) -> bool:
        return all(_equal(value, self.values[0]) for value in self.values[1:])


class Differences(Records[Difference]):
    """Fields of versions, by name; columns have the labels of the versions."""

    def __init__(self, found: Iterable[Difference] = (), labels: Sequence[str] = ()) -> None:
        super().__init__(found)
        self.labels = tuple(labels)

    def rows(self) -> list[dict[str, Any]]:
        return [{"name": each.name, **self._by_label(each)} for each in self]

    def apart(self) -> Differences:
        """The fields that differ."""
        return Differences((each for each in self if not each.same), self.labels)

    def _by_label(self, difference: Difference) -> dict[str, Any]:
        # Two columns have the same label if a version is compared with itself.
        columns = [f"{label} ({n})" if self.labels.index(label) != n else label for n, label in enumerate(self.labels)]
        return {c: None if v is ABSENT else v for c, v in zip(columns, difference.values, strict=True)}


@dataclass(frozen=True)
class Comparison:
    """The network and the weights of one version, compared with those of the first."""

    network: NetworkDifference
    parameters: Records[ParameterDifference]
    layers: Records[NetworkLayer] = field(default_factory=Records, repr=False)  # of this version's network

    @property
    def same(self) -> bool:
        return self.network.same and all(each.what == "same" for each in self.parameters)


@dataclass(frozen=True)
class Diff:
    """The differences between versions; `comparisons` has one for each version but the first."""

    references: tuple[ResolvedReference, ...]
    metadata: Differences
    hyperparameters: Differences
    metrics: Differences
    files: Differences
    comparisons: tuple[Comparison, ...] = field(repr=False)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(reference.label for reference in self.references)

    @property
    def same(self) -> bool:
        """Whether nothing but names and times differs."""
        return not any(self.fields(name).apart() for name in FIELDS) and all(each.same for each in self.comparisons)

    def fields(self, name: str) -> Differences:
        found: Differences = getattr(self, name)
        return found

    def to_pandas(self) -> pd.DataFrame:
        """A row for each difference in metadata, hyperparameters, metrics and files, with its section."""
        return data_frame([{"section": name, **row} for name in FIELDS for row in self.fields(name).apart().rows()])

    def as_json(self, everything: bool = False) -> dict[str, Any]:
        """The differences, or all fields, as plain values."""
        return {
            "versions": [_version_json(reference) for reference in self.references],
            "same": self.same,
            **{name: _fields_json(self.fields(name), everything) for name in FIELDS},
            "comparisons": [_comparison_json(each, everything) for each in self.comparisons],
        }

    def _repr_html_(self) -> str:
        parts = [_section_html(name, self.fields(name).apart()) for name in FIELDS]
        for label, each in zip(self.labels[1:], self.comparisons, strict=True):
            parts += list(_comparison_html(self.labels[0], label, each))
        verdict = f"<p>{escape(' and '.join(self.labels))} do not differ.</p>" if self.same else ""
        return verdict + "".join(parts)


def compare(repo: Repo, references: Sequence[str | Version], exact: bool = False) -> Diff:
    """Compare two or more versions, or snapshots of them, with the first."""
    if len(references) < 2:
        raise UsageError("Give two versions or more, such as: regatta diff A B")
    resolved = [resolve_reference(repo, reference) for reference in references]
    versions = [each.version for each in resolved]
    labels = [each.label for each in resolved]
    with repo.catalog.reading():
        sections = {
            "metadata": [_metadata(repo, version) for version in versions],
            "hyperparameters": [version.hyperparameters for version in versions],
            "metrics": _metrics(repo, resolved),
            "files": [{f.path: f.hash for f in repo.catalog.files(version)} for version in versions],
        }
        networks = [repo.catalog.network(version.network) for version in versions]
    weights = [None if each.snapshot is None else weights_of(repo, each.version, each.snapshot) for each in resolved]
    fields = {}
    for section, known in sections.items():
        names = dict.fromkeys(name for values in known for name in values)
        found = [Difference(name, tuple(values.get(name, ABSENT) for values in known)) for name in names]
        fields[section] = Differences(found, labels)
    comparisons = []
    for n in range(1, len(resolved)):
        network = compare_networks(networks[0], networks[n])
        tensors = compare_weights(weights[0], weights[n], network.parameters, exact)
        comparisons.append(Comparison(network, tensors, layers_of(networks[n])))
    return Diff(tuple(resolved), **fields, comparisons=tuple(comparisons))


def _metadata(repo: Repo, version: Version) -> dict[str, Any]:
    """The metadata of a version, without its name, number, id and time, which always differ."""
    run = repo.catalog.run(version.run)
    git = {f"git {name}": value for name, value in (version.git or {}).items()}
    parents = [parent.reference for parent in repo.catalog.parents(version)]
    known = {
        "message": version.message or ABSENT,
        "tags": [tag.name for tag in repo.catalog.tags(version)] or ABSENT,
        "parents": parents or ABSENT,
        "run": run.name if run else ABSENT,
        **git,
        "parameters": ABSENT if version.parameters is None else version.parameters,
        "snapshots": version.snapshots,
        **version.metadata,
    }
    return {name: value for name, value in known.items() if value is not ABSENT}


def _metrics(repo: Repo, resolved: Sequence[ResolvedReference]) -> list[dict[str, Any]]:
    """The range of each metric; if a reference names an epoch, the values at that epoch."""
    if all(each.epoch is None for each in resolved):
        return [dict(_ranges(each.version)) for each in resolved]
    return [_values_at(repo, each) for each in resolved]


def _ranges(version: Version) -> Iterator[tuple[str, float]]:
    for name, found in sorted(version.metrics.items()):
        yield f"{name}, last", found.last
        if found.lowest != found.highest:
            yield f"{name}, lowest", found.lowest
            yield f"{name}, highest", found.highest


def _values_at(repo: Repo, resolved: ResolvedReference) -> dict[str, Any]:
    if resolved.epoch is None:
        return {f"{name}, last": found.last for name, found in sorted(resolved.version.metrics.items())}
    points = repo.catalog.metrics(resolved.version)
    return {f"{point.name}, last": point.value for point in points if point.step == resolved.epoch}


def _equal(a: Any, b: Any) -> bool:
    """Whether two values are equal as JSON: 1 and true are not; NaN equals NaN."""
    if isinstance(a, bool) != isinstance(b, bool) or (a is ABSENT) != (b is ABSENT):
        return False
    return bool(a == b) or (a != a and b != b)


def _version_json(resolved: ResolvedReference) -> dict[str, Any]:
    version = resolved.version
    return {
        "label": resolved.label, "reference": version.reference, "id": version.id, "created": version.created,
        "snapshot": None if resolved.snapshot is None else resolved.snapshot.row(),
    }  # fmt: skip


def _fields_json(found: Differences, everything: bool) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name, "same": each.same, "values": [None if v is ABSENT else v for v in each.values],
            "present": [v is not ABSENT for v in each.values],
        }
        for each in (found if everything else found.apart())
    ]  # fmt: skip


def _comparison_json(each: Comparison, everything: bool) -> dict[str, Any]:
    layers = [layer for layer in each.network.layers if everything or layer.what != "same"]
    tensors = [tensor for tensor in each.parameters if everything or tensor.what != "same"]
    return {
        "network": {
            "same": each.network.same,
            "expressions": [each.network.left_expression, each.network.right_expression],
            "layers": [
                {"what": n.what, "kind": n.kind, "left": n.left, "right": n.right, "changes": dict(n.changes)}
                for n in layers
            ],
        },
        "parameters": [_tensor_json(tensor) for tensor in tensors],
    }


def _tensor_json(each: ParameterDifference) -> dict[str, Any]:
    return {
        "what": each.what, "left": each.left, "right": each.right, "dtypes": each.dtypes, "shapes": each.shapes,
        "planes": each.planes, "norms": each.norms, "distance": each.distance, "relative": each.relative,
        "moved": each.moved, "histograms": [None if h is None else h.__dict__ for h in each.histograms],
    }  # fmt: skip


def _section_html(name: str, found: Differences) -> str:
    if not found:
        return ""
    rows = [list(row.items()) for row in found.rows()]
    return f"<h4>{escape(name)}</h4>" + table_html([key for key, _ in rows[0]], rows)


def _comparison_html(left: str, right: str, each: Comparison) -> Iterator[str]:
    both = escape(f"{left} and {right}")
    layers = [layer.row() for layer in each.network.layers if layer.what != "same"]
    if layers:
        yield f"<h4>network of {both}</h4>" + table_html(list(layers[0]), [list(row.items()) for row in layers])
    tensors = [each for each in each.parameters if each.what != "same"]
    if tensors:
        rows = [[("tensor", t.name), ("what", t.what), ("distance", t.distance or ""), ("relative", t.relative or ""),
                 ("moved", t.moved)] for t in tensors]  # fmt: skip
        yield f"<h4>weights of {both}</h4>" + table_html([key for key, _ in rows[0]], rows)
