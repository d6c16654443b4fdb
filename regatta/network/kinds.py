"""The vocabulary of layers, common to all frameworks, so that their graphs can be compared.

A kind lists the hyperparameters that its nodes may have, with types and defaults. A value that equals the default is
never stored, so that two networks with the same meaning are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from regatta.errors import DataError, nearest

Attribute: TypeAlias = "bool | int | float | str | tuple[Attribute, ...] | None"
Attributes: TypeAlias = Mapping[str, Attribute]

MAX_ATTRIBUTES = 64
MAX_ITEMS = 4096  # in one attribute, all its lists together
MAX_NESTING = 4
MAX_TEXT_CHARACTERS = 4096
MAX_DIMS = 30  # axes beside those of samples and channels
MAX_INTEGER = 2**63


@dataclass(frozen=True)
class LayerKind:
    """`types` of attributes: int, number, bool, text, ints, any. A default for ints is the value of each."""

    name: str
    types: Mapping[str, str] = field(default_factory=dict)
    defaults: Attributes = field(default_factory=dict)
    family: str = ""


def _kind(name: str, family: str = "", /, **attributes: Any) -> LayerKind:
    """`stride=("ints", 1)` is an attribute with a default, `kernel="ints"` one without."""
    types = {key: value if isinstance(value, str) else value[0] for key, value in attributes.items()}
    defaults = {key: value[1] for key, value in attributes.items() if not isinstance(value, str)}
    return LayerKind(name, types, defaults, family)


_WINDOW: dict[str, Any] = {"dims": "int", "kernel": "ints", "padding": ("ints", 0), "dilation": ("ints", 1)}

_LAYERS = (
    _kind(
        "CONV", **_WINDOW, **{"in": "int"}, out="int", stride=("ints", 1), groups=("int", 1), bias=("bool", True),
        transposed=("bool", False), output_padding=("ints", 0), padding_mode=("text", "zeros"),
    ),
    _kind(
        "POOL", **_WINDOW, function="text", stride="ints", output="ints", ceil=("bool", False),
        count_padding=("bool", True),
    ),
    _kind("FULL", **{"in": "int"}, out="int", bias=("bool", True)),
    _kind(
        "NORM", function="text", features="int", shape="ints", groups="int", eps=("number", 1e-5),
        momentum=("number", 0.1), affine=("bool", True), bias=("bool", True), track=("bool", True), size="int",
        alpha="number", beta="number", k="number", axes="ints",
    ),
    _kind("DROPOUT", p=("number", 0.5), function=("text", "elements")),
    _kind("EMBED", count="int", features="int", padding_index="int"),
    _kind(
        "ATTENTION", function=("text", "multihead"), features="int", heads="int", keys="int", values="int",
        bias=("bool", True), dropout=("number", 0.0), batch_first=("bool", True), causal=("bool", False),
        scale="number", weights=("bool", True), masks="any",
    ),
    _kind(
        "RNN", function="text", **{"in": "int"}, hidden="int", layers=("int", 1), bias=("bool", True),
        batch_first=("bool", True), dropout=("number", 0.0), bidirectional=("bool", False), projection=("int", 0),
        sequences=("bool", True),
    ),
)  # fmt: skip

_ACTIVATIONS = (
    *(_kind(name, "activation") for name in ("RELU", "SELU", "SILU", "MISH", "SIGMOID", "LOG_SIGMOID", "HARD_SWISH")),
    *(_kind(name, "activation") for name in ("TANH", "SOFTSIGN")),
    _kind("LEAKY_RELU", "activation", slope=("number", 0.01)),
    _kind("PRELU", "activation", count=("int", 1)),
    _kind("ELU", "activation", alpha=("number", 1.0)),
    _kind("CELU", "activation", alpha=("number", 1.0)),
    _kind("GELU", "activation", approximate=("text", "none")),
    _kind("HARD_SIGMOID", "activation", alpha=("number", 1 / 6), beta=("number", 0.5)),
    _kind("SOFTPLUS", "activation", beta=("number", 1.0), threshold=("number", 20.0)),
    _kind("CLIP", "activation", min="number", max="number"),
    _kind("SOFTMAX", axis=("int", -1), log=("bool", False)),
)

_ARITHMETIC = (
    *(
        _kind(name, "arithmetic", value="number", left=("bool", False))
        for name in ("ADD", "MUL", "SUB", "DIV", "POW", "MAXIMUM", "MINIMUM")
    ),
    _kind("MATMUL"),
    _kind("MATH", function="text"),
    _kind("REDUCE", function="text", axes="ints", keep=("bool", False)),
)

_SHAPES = (
    _kind("CONCAT", axis=("int", 1)),
    _kind("STACK", axis=("int", 0)),
    _kind("SPLIT", axis=("int", 0), count="int", size="int", sizes="ints"),
    _kind("SELECT", item="int"),
    _kind("FLATTEN", "shape", start=("int", 1), end=("int", -1)),
    _kind("RESHAPE", "shape", shape="ints"),
    _kind("TRANSPOSE", order="ints", swap="ints"),
    _kind("SQUEEZE", "shape", axes="ints"),
    _kind("UNSQUEEZE", "shape", axes="ints"),
    _kind("EXPAND", shape="ints"),
    _kind("SLICE", index="any"),
    _kind("PAD", padding="ints", mode=("text", "constant"), value=("number", 0.0)),
    _kind("RESIZE", size="ints", scale="any", mode=("text", "nearest"), corners="bool"),
)

_ENDS = (
    _kind("INPUT", dtype="text"),
    _kind("OUTPUT"),
    _kind("WEIGHT"),
    _kind("CONSTANT", value="any", dtype="text"),
    _kind("IDENTITY"),
    _kind("CAST", dtype="text"),
    _kind("OTHER"),
)

KINDS: Mapping[str, LayerKind] = {kind.name: kind for kind in (*_LAYERS, *_ACTIVATIONS, *_ARITHMETIC, *_SHAPES, *_ENDS)}
COMMUTATIVE = frozenset(("ADD", "MUL", "MAXIMUM", "MINIMUM"))


def kind_of(name: str, place: str | None = None) -> LayerKind:
    try:
        return KINDS[name]
    except KeyError:
        raise DataError(
            f"{name!r:.80} is not a kind of layer.", place=place, candidates=nearest(name[:80], KINDS)
        ) from None


def normalize_attributes(
    kind_name: str, attributes: Mapping[str, Any], place: str | None = None
) -> dict[str, Attribute]:
    """Attributes in canonical form: known names, valid types, lists as tuples, defaults left out."""
    kind = kind_of(kind_name, place)
    if len(attributes) > MAX_ATTRIBUTES:
        raise DataError(f"{len(attributes)} attributes, where {MAX_ATTRIBUTES} are allowed.", place=place)
    tidied: dict[str, Attribute] = {}
    for name, value in sorted(attributes.items()):
        plain = _plain(name, value, place)
        _check_type(kind, name, plain, place)
        if plain is not None and not _is_default(kind, name, plain):
            tidied[name] = plain
    return tidied


def with_default(kind_name: str, attributes: Attributes, name: str) -> Attribute:
    """An attribute's value, or its default."""
    if name in attributes:
        return attributes[name]
    kind = KINDS[kind_name]
    default = kind.defaults.get(name)
    dims = attributes.get("dims")
    if kind.types.get(name) == "ints" and isinstance(default, int) and isinstance(dims, int):
        return (default,) * dims
    return default


def parse_index(items: Iterable[Any] | None) -> tuple[Any, ...]:
    """The index of a SLICE: `start:stop:step` is a slice, "..." an ellipsis, anything else stands for itself."""
    return tuple(_parse_item(item) if isinstance(item, str) else item for item in items or ())


def _parse_item(text: str) -> Any:
    return ... if text == "..." else slice(*(int(part) if part else None for part in text.split(":")))


def _plain(name: str, value: object, place: str | None) -> Attribute:
    if not isinstance(name, str) or not 0 < len(name) <= 256:
        raise DataError(f"The name of an attribute is a short text, not {name!r:.80}.", place=place)
    plain = _frozen(name, value, MAX_NESTING, place)
    if sum(1 for _ in _leaves(plain)) > MAX_ITEMS:
        raise DataError(f"The attribute {name!r:.80} has more than {MAX_ITEMS} items.", place=place)
    return plain


def _frozen(name: str, value: object, depth: int, place: str | None) -> Attribute:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS:
        return value
    if isinstance(value, int) and abs(value) < MAX_INTEGER:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, list | tuple) and depth and len(value) <= MAX_ITEMS:
        return tuple(_frozen(name, item, depth - 1, place) for item in value)
    raise DataError(
        f"The attribute {name!r:.80} is {value!r:.80}; attributes are finite JSON scalars and short lists of them.",
        place=place,
    )


def _leaves(value: Attribute) -> Iterator[Attribute]:
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    yield value


def _check_type(kind: LayerKind, name: str, value: Attribute, place: str | None) -> None:
    if kind.name == "OTHER" or value is None:
        return
    if name not in kind.types:
        raise DataError(
            f"{kind.name} has no attribute {name!r:.80}.", place=place, candidates=nearest(name, kind.types)
        )
    if name == "dims" and not (isinstance(value, int) and 0 < value <= MAX_DIMS):
        raise DataError(f"{kind.name}'s 'dims' is {value!r:.80}, not a number from 1 to {MAX_DIMS}.", place=place)
    if not _has_type(value, kind.types[name]):
        raise DataError(f"{kind.name}'s {name!r} is {value!r:.80}, not {_TYPE_NAMES[kind.types[name]]}.", place=place)


_TYPE_NAMES = {
    "int": "an integer", "number": "a number", "bool": "true or false", "text": "a text",
    "ints": "a list of integers", "any": "JSON",
}  # fmt: skip


def _has_type(value: Attribute, wanted: str) -> bool:
    match wanted:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "bool":
            return isinstance(value, bool)
        case "text":
            return isinstance(value, str)
        case "ints":
            return isinstance(value, tuple) and all(item is None or _has_type(item, "int") for item in value)
    return True


def _is_default(kind: LayerKind, name: str, value: Attribute) -> bool:
    if name not in kind.defaults:
        return False
    default = kind.defaults[name]
    if kind.types[name] == "ints":
        return isinstance(value, tuple) and len(value) > 0 and all(item == default for item in value)
    if kind.types[name] == "number" and isinstance(value, int | float) and isinstance(default, int | float):
        return math.isclose(value, default, rel_tol=1e-6, abs_tol=1e-12)  # ONNX writes float32
    return value == default
