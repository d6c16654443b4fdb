"""The distribution and storage of each tensor of a version, and the distances between the tensors of two versions.

Only the leading planes of floats are read, unless `exact`. Equal tensors have equal ids, so nothing of them is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regatta.repo.catalog.records import Records
from regatta.repo.inspect.distributions import (
    PLANES,
    Distribution,
    Histogram,
    Interval,
    count_magnitudes,
    describe_tensor,
    distance,
    histogram,
    histogram_distance,
    norm,
)
from regatta.store.format.dtypes import dtype_named
from regatta.store.format.encodings import ENCODINGS
from regatta.store.format.tensor_id import as_tensor
from regatta.store.slices import PartialTensor

if TYPE_CHECKING:
    from regatta.repo.weights import Weights
    from regatta.store.format.manifest import ManifestEntry
    from regatta.store.store import ParameterStore

ALL_PLANES = 16  # more than any type has
BATCH_ELEMENTS = 2**26  # read at once, except for a single larger tensor
SMALL_ELEMENTS = 2**12  # tensors up to this size are read in full


@dataclass(frozen=True)
class ParameterDifference:
    """A tensor of the left version, of the right one, or a pair.

    `what` is "same" (bit for bit), "changed", "reshaped", "removed" (only the left has it) or "added". A field is
    None if it was not read, as for equal tensors, or has no meaning, as a distance between different shapes.
    """

    what: str
    left: str | None
    right: str | None
    dtypes: tuple[str | None, str | None]
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    planes: int = 0
    norms: tuple[Interval | None, Interval | None] = (None, None)
    distance: Interval | None = None
    moved: float | None = None  # the share of weights in another bin of the histogram
    histograms: tuple[Histogram | None, Histogram | None] = (None, None)

    @property
    def name(self) -> str:
        return self.left or self.right or ""

    @property
    def relative(self) -> Interval | None:
        """The distance in norms of the left tensor."""
        if self.distance is None or self.norms[0] is None or self.norms[0].low <= 0:
            return None
        return Interval(self.distance.low / self.norms[0].high, self.distance.high / self.norms[0].low)

    def row(self) -> dict[str, Any]:
        found = {
            "what": self.what, "left": self.left, "right": self.right,
            "left_shape": self.shapes[0], "right_shape": self.shapes[1], "planes": self.planes,
        }  # fmt: skip
        known = {"distance": self.distance, "relative": self.relative}
        ends = {f"{key}_{end}": None if value is None else getattr(value, end)
                for key, value in known.items() for end in ("low", "high")}  # fmt: skip
        return {**found, **ends, "moved": self.moved}


def distributions(
    store: ParameterStore | None, weights: Weights, names: Iterable[str] | None = None, exact: bool = False
) -> Records[Distribution]:
    """The distributions of the tensors of a snapshot; with a store, also their stored sizes."""
    found: Records[Distribution] = Records()
    for some in _batches(weights.members, weights.members if names is None else names):
        read = _read(weights, some, exact)
        found += (describe_tensor(name, read[name], **_stored(store, weights.members[name])) for name in some)
    return found


def compare_weights(
    left: Weights | None, right: Weights | None, names: Mapping[str, str], exact: bool = False
) -> Records[ParameterDifference]:
    """Every tensor of the two, in the order of the left; `names` has those of the left by those of the right."""
    mine = {} if left is None else left.members
    others = {} if right is None else right.members
    pairs = _paired(mine, others, names)
    changed = {} if left is None or right is None else _changed(left, right, pairs, exact)
    found = [
        changed.get(name) or _unread("same" if name in pairs else "removed", mine, name, others, pairs.get(name))
        for name in mine
    ]
    taken = set(pairs.values())
    added = [_unread("added", mine, None, others, name) for name in others if name not in taken]
    return Records([*found, *added])


def _paired(
    left: Mapping[str, ManifestEntry], right: Mapping[str, ManifestEntry], names: Mapping[str, str]
) -> dict[str, str]:
    """The names of the right tensors by those of the left: by their layers, then by their names."""
    pairs = {mine: other for other, mine in names.items() if other in right and mine in left}
    taken = set(pairs.values())
    pairs |= {name: name for name in left if name not in pairs and name in right and name not in taken}
    return pairs


def _identity(weights: Weights, name: str) -> str:
    """The id of a tensor: equal tensors have equal ids. For a state file it is computed."""
    return weights.members[name].id or as_tensor(name, weights[name]).id


def _changed(left: Weights, right: Weights, pairs: Mapping[str, str], exact: bool) -> dict[str, ParameterDifference]:
    """The pairs that are not equal, by the name on the left; equal pairs are not read."""
    apart = [name for name, other in pairs.items() if _identity(left, name) != _identity(right, other)]
    found: dict[str, ParameterDifference] = {}
    for some in _batches(left.members, apart):
        lefts, rights = _read(left, some, exact), _read(right, [pairs[name] for name in some], exact)
        found |= {name: _compared(name, lefts[name], pairs[name], rights[pairs[name]]) for name in some}
    return found


def _compared(name: str, a: PartialTensor, other: str, b: PartialTensor) -> ParameterDifference:
    one, two = count_magnitudes(a), count_magnitudes(b)
    return ParameterDifference(
        "changed" if a.shape == b.shape else "reshaped", name, other, (a.dtype.name, b.dtype.name), (a.shape, b.shape),
        min(a.planes, b.planes), (norm(a, one), norm(b, two)),
        distance(a, b) if a.words.shape == b.words.shape else None,
        histogram_distance(one, two), (histogram(one), histogram(two)),
    )  # fmt: skip


def _unread(
    what: str,
    left: Mapping[str, ManifestEntry],
    name: str | None,
    right: Mapping[str, ManifestEntry],
    other: str | None,
) -> ParameterDifference:
    known = [None if name is None else left[name], None if other is None else right[other]]
    dtypes, shapes = ([None if m is None else getattr(m, key) for m in known] for key in ("dtype", "shape"))
    return ParameterDifference(what, name, other, (dtypes[0], dtypes[1]), (shapes[0], shapes[1]))


def _batches(members: Mapping[str, ManifestEntry], names: Iterable[str]) -> Iterator[list[str]]:
    """Names in their order, in batches of BATCH_ELEMENTS."""
    some: list[str] = []
    size = 0
    for name in names:
        count = math.prod(members[name].shape)
        if some and size + count > BATCH_ELEMENTS:
            yield some
            some, size = [], 0
        some.append(name)
        size += count
    if some:
        yield some


def _read(weights: Weights, names: Iterable[str], exact: bool) -> dict[str, PartialTensor]:
    """The leading planes of large floats; small tensors and integers are read in full."""
    wanted = list(dict.fromkeys(names))
    partly = set()
    for name in wanted if not exact else ():
        member = weights.members[name]
        if dtype_named(member.dtype).kind == "float" and math.prod(member.shape) > SMALL_ELEMENTS:
            partly.add(name)
    rest = [name for name in wanted if name not in partly]
    leading = weights.read(sorted(partly), PLANES) if partly else {}
    return {**leading, **(weights.read(rest, ALL_PLANES) if rest else {})}


def _stored(store: ParameterStore | None, member: ManifestEntry) -> dict[str, Any]:
    if store is None or not member.id:
        return {}
    entry = store.entry(member.id)
    return {"stored_bytes": entry.stored_bytes, "encoding": ENCODINGS[entry.encoding].name}
