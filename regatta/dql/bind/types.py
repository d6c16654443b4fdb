"""Which types go together, and what they are called in errors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from regatta.dql.bound import SET_TYPES, BoundPart, Constant, Type

NAMES: dict[Type, str] = {
    "text": "a text", "number": "a number", "boolean": "true or false", "time": "a time",
    "duration": "a length of time", "model": "a model", "models": "models", "nodes": "layers", "texts": "texts",
    "list": "a list", "any": "a value", "null": "null",
}  # fmt: skip
ANY_OF = ("text", "number", "boolean", "list", "any")  # what a value of type `any` may be
ORDERED = ("text", "number", "time", "duration", "any")


def comparable(left: Type, right: Type) -> bool:
    """Whether values of these types can be equal."""
    if left in SET_TYPES or right in SET_TYPES or "null" in (left, right):
        return False
    return left == right or (left == "any" and right in ANY_OF) or (right == "any" and left in ANY_OF)


def common(types: list[Type]) -> Type | None:
    """The type of a column that holds values of all these types; None if there is none. Null goes with each."""
    known = set(types) - {"null"}
    if len(known) <= 1:
        return known.pop() if known else "null"
    return "any" if known <= set(ANY_OF) else None


def type_of_value(value: Any) -> Type | None:
    """The type of a Python value, as a parameter has it; None if queries know no such values."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "text"
        case list() | tuple() | set() | frozenset():
            return "list"
    return None


def parse_time(text: str) -> float | None:
    """Seconds since 1970 of a date or a time in ISO 8601; UTC where it names no zone. None if it is neither."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    try:
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        return None


def parse_number(text: str) -> float | None:
    """The number that a text looks like; None if it is another text."""
    try:
        return float(text)
    except ValueError:
        return None


def is_text_constant(part: BoundPart) -> bool:
    return isinstance(part, Constant) and part.type == "text"
