"""Formats values: for people (seconds, bytes, counts, metrics, a series in one line of text) and for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BARS = "▁▂▃▄▅▆▇█"
NOT_A_NUMBER = "×"
MAX_PARTS, MAX_TEXT_CHARACTERS = 3, 200  # parts of a tuple, and characters, that an error shows of a value


def seconds(value: float) -> str:
    """1.2 s, 34 ms, 2 min 05 s, 3 h 12 min: about three figures."""
    if value < 0.0005:
        return "0 ms" if value < 0.00005 else f"{value * 1e3:.1f} ms"
    if value < 0.0995:
        return f"{value * 1e3:.0f} ms"
    if value < 99.5:
        return f"{value:.2f} s" if value < 0.995 else f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(value: float) -> str:
    """Bytes in powers of a thousand: 512 B, 3.4 kB, 40 MB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 9.95 else f"{value:.1f} {unit}"


def count(number: int, singular: str, plural: str | None = None) -> str:
    """1 unit, 96 units, 12,345 units."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def metric(value: float | None) -> str:
    """Four figures; a missing value is "-", and NaN is shown as such."""
    if value is None:
        return "-"
    return "NaN" if math.isnan(value) else f"{value:.4g}"


def scalar(value: object) -> str:
    """A value of a configuration, as a user would type it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def type_name(value: object) -> str:
    """The type of a value with its article: "a tuple", "an ndarray"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def brief(value: object) -> str:
    """A value that the user passed, for an error: arrays are described, because their texts have many lines."""
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape):
        return f"{type_name(value)} of shape {tuple(shape)}"
    if isinstance(value, tuple | list) and any(hasattr(part, "shape") for part in value):
        some = [brief(part) for part in value[:MAX_PARTS]]
        more = [f"{len(value) - MAX_PARTS} more"] if len(value) > MAX_PARTS else []
        return f"{type_name(value)} of {', '.join([*some, *more])}"
    text = repr(value)
    return text if len(text) <= MAX_TEXT_CHARACTERS and "\n" not in text else type_name(value)


def share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "-"


def visible(text: str, kept: str = "\n\t") -> str:
    """The text with its control characters escaped: a name or a message must not steer the reader's terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in kept else repr(each)[1:-1] for each in text)


def json_value(value: Any) -> Any:
    """The value as JSON has it: without NaN, infinities, tuples and paths."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def sparkline(series: Sequence[float], width: int = 12) -> str:
    """The last values of a series as bars, with × for values that are not numbers."""
    shown = list(series[-width:])
    finite = [value for value in shown if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_bar(value, low, high) for value in shown)


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return NOT_A_NUMBER
    if high <= low:
        return BARS[3]
    return BARS[round((value - low) / (high - low) * (len(BARS) - 1))]
