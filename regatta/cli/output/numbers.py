"""Numbers for people: seconds, bytes, metrics, and a series in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from regatta.format import count, seconds, size

__all__ = ["count", "metric", "scalar", "seconds", "share", "size", "sparkline"]
BARS = "▁▂▃▄▅▆▇█"
NOT_A_NUMBER = "×"


def metric(value: float | None) -> str:
    """Four figures; a missing value and NaN are said, not hidden."""
    if value is None:
        return "-"
    return "NaN" if math.isnan(value) else f"{value:.4g}"


def scalar(value: object) -> str:
    """A value of a configuration as one would type it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "-"


def sparkline(series: Sequence[float], width: int = 12) -> str:
    """The last values of a series as bars, the lowest the smallest; × where it was not a number."""
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
