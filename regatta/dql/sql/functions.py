"""Functions in Python that statements call: what SQLite lacks, or would answer in another way."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    return json.loads(text)


def member(text: str | None, keys: str) -> str | None:
    """The value under these keys (a JSON list) as JSON; None if it is missing or null."""
    value = None if text is None else _parsed(text)
    for key in _parsed(keys):
        value = value.get(key) if isinstance(value, dict) else None
    return None if value is None else _written(value)


def number_of(text: str | None) -> float | int | None:
    value = None if text is None else _parsed(text)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return _fitting(value) if is_number else None


def text_of(text: str | None) -> str | None:
    value = None if text is None else _parsed(text)
    return value if isinstance(value, str) else None


def boolean_of(text: str | None) -> bool | None:
    return {"true": True, "false": False}.get(text or "")


def quote(value: Any) -> str | None:
    """A number or a text as JSON."""
    return None if value is None else _written(value)


def canonical(text: str | None) -> str | None:
    """The same JSON for equal values: 1 and 1.0 are equal, also in lists."""
    return None if text is None else _written(_with_whole_numbers(_parsed(text)))


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def equal(left: str | None, right: str | None) -> bool | None:
    """None if one is null, or if they are not of one type."""
    if left is None or right is None:
        return None
    one, other = _parsed(left), _parsed(right)
    return None if _kind(one) != _kind(other) else bool(one == other)


def compare(left: str | None, right: str | None) -> int | None:
    """-1, 0 or 1; None if one is null, or if they are not two numbers or two texts."""
    if left is None or right is None:
        return None
    one, other = _parsed(left), _parsed(right)
    kind = _kind(one)
    if kind != _kind(other) or kind not in ("number", "text"):
        return None
    return int(one > other) - int(one < other)


def rank(text: str | None) -> int | None:
    """Where values of type `any` stand in an order: numbers, texts, true and false, lists and mappings."""
    return None if text is None else ("number", "text", "boolean", "list").index(_kind(_parsed(text)))


def glob_of_like(pattern: str | None) -> str | None:
    """A pattern of LIKE as one of GLOB, which minds upper and lower case: % is *, _ is ?."""
    if pattern is None:
        return None
    return "".join({"%": "*", "_": "?"}.get(each, f"[{each}]" if each in "*?[" else each) for each in pattern)


def remainder(left: float | None, right: float | None) -> float | None:
    """With the sign of the left side; null by 0."""
    if left is None or right is None or not right or math.isinf(left):
        return None
    return math.fmod(left, right)


def rounded(value: float | None, digits: float | None = 0) -> float | None:
    if value is None or digits is None:
        return None
    return value if math.isinf(value) else round(float(value), int(max(-300, min(300, digits))))


def lowered(text: str | None) -> str | None:
    return None if text is None else text.lower()


def uppered(text: str | None) -> str | None:
    return None if text is None else text.upper()


def length_of(text: str | None) -> int | None:
    return None if text is None else len(text)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "list"


def _fitting(value: Any) -> Any:
    """SQLite's whole numbers have 64 bits."""
    if isinstance(value, float) or abs(value) < 2**63:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
