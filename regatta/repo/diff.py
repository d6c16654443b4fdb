"""What differs between versions: what is known of them, their networks, weights, metrics and files.

Of two or more versions the first is what the others are compared with. What is equal is left out where people look, and
is there for whoever asks for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from regatta.errors import UsageError
from regatta.repo.catalog.records import Records, Version, table_html
from regatta.repo.inspect.layers import (
    NetworkDifference,
    NetworkLayer,
    compare_networks,
    layers_of,
)
from regatta.repo.inspect.parameters import ParameterDifference, compare_weights
from regatta.repo.references import ResolvedReference, resolve_reference
from regatta.repo.snapshots import weights_of

if TYPE_CHECKING:
    import pandas as pd

    from regatta.repo.repo import Repo
    from regatta.repo.weights import Weights

FIELDS = ("metadata", "hyperparameters", "metrics", "files")
LONGEST = 60  # characters of a value in a table


class Absent:
    """What stands for a value that a version does not have; None is a value."""

    def __repr__(self) -> str:
        return "-"

    def __bool__(self) -> bool:
        return False


ABSENT = Absent()


@dataclass(frozen=True)
class Difference:
    """One thing that is known of the versions, with its value in each of them; ABSENT where one has none."""

    name: str
    values: tuple[Any, ...]

    @property
    def same(self) -> bool:
        return all(_alike(value, self.values[0]) for value in self.values[1:])

    def row(self) -> dict[str, Any]:
        return {"name": self.name, **{str(number): value for number, value in enumerate(self.values, 1)}}


class Differences(Records[Difference]):
    """What is known of versions, by name; columns are called as the versions are."""

    def __init__(self, found: Iterable[Difference] = (), labels: Sequence[str] = ()) -> None:
        super().__init__(found)
        self.labels = tuple(labels)

    def rows(self) -> list[dict[str, Any]]:
        return [{"name": each.name, **self._by_label(each)} for each in self]

    def apart(self) -> Differences:
        return Differences((each for each in self if not each.same), self.labels)

    def _by_label(self, difference: Difference) -> dict[str, Any]:
        # Two columns may have the same label, when a version is compared with itself.
        columns = [f"{label} ({n})" if self.labels.index(label) != n else label for n, label in enumerate(self.labels)]
        return {c: None if v is ABSENT else v for c, v in zip(columns, difference.values, strict=True)}


@dataclass(frozen=True)
class Comparison:
    """The network and the weights of one version, beside those of the first."""

    network: NetworkDifference
    parameters: Records[ParameterDifference]
    layers: Records[NetworkLayer] = field(default_factory=Records, repr=False)  # of the network of this one

    @property
    def same(self) -> bool:
        return self.network.same and all(each.what == "same" for each in self.parameters)


@dataclass(frozen=True)
class Diff:
    """What differs between versions; `sides` are they, `comparisons` has one for each but the first."""

    sides: tuple[ResolvedReference, ...]
    metadata: Differences
    hyperparameters: Differences
    metrics: Differences
    files: Differences
    comparisons: tuple[Comparison, ...] = field(repr=False)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(side.label for side in self.sides)

    @property
    def same(self) -> bool:
        """Whether nothing differs but names and times."""
        return not any(self.fields(name).apart() for name in FIELDS) and all(each.same for each in self.comparisons)

    def fields(self, name: str) -> Differences:
        found: Differences = getattr(self, name)
        return found

    def to_pandas(self) -> pd.DataFrame:
        """A row for all that differs in metadata, hyperparameters, metrics and files, with its section."""
        sections: Records[Any] = Records(
            _Row({"section": name, **row}) for name in FIELDS for row in self.fields(name).apart().rows()
        )
        return sections.to_pandas()

    def as_json(self, everything: bool = False) -> dict[str, Any]:
        """As plain values: what differs, or all."""
        return {
            "versions": [_side(side) for side in self.sides],
            "same": self.same,
            **{name: _fields(self.fields(name), everything) for name in FIELDS},
            "comparisons": [_comparison(each, everything) for each in self.comparisons],
        }

    def _repr_html_(self) -> str:
        parts = [_section_html(name, self.fields(name).apart()) for name in FIELDS]
        for label, each in zip(self.labels[1:], self.comparisons, strict=True):
            parts += list(_comparison_html(self.labels[0], label, each))
        said = f"<p>{escape(' and '.join(self.labels))} differ in nothing.</p>" if self.same else ""
        return said + "".join(parts)


@dataclass(frozen=True)
class _Row:
    known: Mapping[str, Any]

    def row(self) -> dict[str, Any]:
        return dict(self.known)


def compare(repo: Repo, references: Sequence[str | Version | ResolvedReference], exact: bool = False) -> Diff:
    """What differs between two or more versions, or snapshots of them."""
    if len(references) < 2:
        raise UsageError(f"It takes two versions to differ, and {len(references)} are given.")
    sides = [each if isinstance(each, ResolvedReference) else resolve_reference(repo, each) for each in references]
    labels = [side.label for side in sides]
    with repo.catalog.reading():
        sections = {
            "metadata": [_metadata(repo, side) for side in sides],
            "hyperparameters": [side.version.hyperparameters for side in sides],
            "metrics": _metrics(repo, sides),
            "files": [{f.path: f.hash for f in repo.catalog.files(side.version)} for side in sides],
        }
        networks = [repo.catalog.network(side.version.network) for side in sides]
    weights = [None if side.snapshot is None else weights_of(repo, side.version, side.snapshot) for side in sides]
    metadata, hyperparameters, metrics, files = (Differences(_differences(sections[n]), labels) for n in FIELDS)
    others = [_compared(networks[0], networks[n], weights[0], weights[n], exact) for n in range(1, len(sides))]
    return Diff(tuple(sides), metadata, hyperparameters, metrics, files, tuple(others))


def _compared(
    left: Mapping[str, Any] | None, right: Mapping[str, Any] | None, mine: Weights | None, other: Weights | None,
    exact: bool,
) -> Comparison:  # fmt: skip
    network = compare_networks(left, right)
    return Comparison(network, compare_weights(mine, other, network.parameters, exact), layers_of(right))


def _differences(known: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    for name in dict.fromkeys(name for values in known for name in values):
        yield Difference(name, tuple(values.get(name, ABSENT) for values in known))


def _metadata(repo: Repo, side: ResolvedReference) -> dict[str, Any]:
    """What people and the surroundings said of a version; not its name, number, id and time, which always differ."""
    version = side.version
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


def _metrics(repo: Repo, sides: Sequence[ResolvedReference]) -> list[dict[str, Any]]:
    """What each metric came to; where somebody asked for a snapshot, what each was then."""
    if all(side.epoch is None for side in sides):
        return [dict(_ranges(side.version)) for side in sides]
    return [_moment(repo, side) for side in sides]


def _ranges(version: Version) -> Iterator[tuple[str, float]]:
    for name, found in sorted(version.metrics.items()):
        yield f"{name}, last", found.last
        if found.lowest != found.highest:
            yield f"{name}, lowest", found.lowest
            yield f"{name}, highest", found.highest


def _moment(repo: Repo, side: ResolvedReference) -> dict[str, Any]:
    if side.epoch is None:
        return {f"{name}, last": found.last for name, found in sorted(side.version.metrics.items())}
    points = repo.catalog.metrics(side.version)
    return {f"{point.name}, last": point.value for point in points if point.step == side.epoch}


def _alike(a: Any, b: Any) -> bool:
    """Equal, and of one type as JSON has types: 1 and true are not the same; NaN is what NaN is."""
    if isinstance(a, bool) != isinstance(b, bool) or (a is ABSENT) != (b is ABSENT):
        return False
    return bool(a == b) or (a != a and b != b)


def _side(side: ResolvedReference) -> dict[str, Any]:
    version = side.version
    return {
        "label": side.label, "reference": version.reference, "id": version.id, "created": version.created,
        "snapshot": None if side.snapshot is None else side.snapshot.row(),
    }  # fmt: skip


def _fields(found: Differences, everything: bool) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name, "same": each.same, "values": [None if v is ABSENT else v for v in each.values],
            "present": [v is not ABSENT for v in each.values],
        }
        for each in (found if everything else found.apart())
    ]  # fmt: skip


def _comparison(each: Comparison, everything: bool) -> dict[str, Any]:
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
        "parameters": [_tensor(tensor) for tensor in tensors],
    }


def _tensor(each: ParameterDifference) -> dict[str, Any]:
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
    said = escape(f"{left} and {right}")
    layers = [layer.row() for layer in each.network.layers if layer.what != "same"]
    if layers:
        yield f"<h4>network of {said}</h4>" + table_html(list(layers[0]), [list(row.items()) for row in layers])
    tensors = [each for each in each.parameters if each.what != "same"]
    if tensors:
        rows = [[("tensor", t.name), ("what", t.what), ("distance", t.distance or ""), ("relative", t.relative or ""),
                 ("moved", t.moved)] for t in tensors]  # fmt: skip
        yield f"<h4>weights of {said}</h4>" + table_html([key for key, _ in rows[0]], rows)
