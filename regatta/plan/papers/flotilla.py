"""createFlotilla: Algorithm 2 of the FLEET paper, and Equation 3 behind it.

The reference is the fastest model on one device. Models join one by one, each with the width that brings its rate
nearest to the reference, as long as it comes within `delta` and there are devices. The slowest get the devices left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regatta.errors import UsageError
from regatta.plan.fleet.rates import Floats

DELTA = 20.0  # rows per second: the paper's threshold, for images


def create_flotilla(rates: Floats, candidates: Sequence[int], devices: int, delta: float = DELTA) -> dict[int, int]:
    """The widths of the models that train together, by their row in `rates` (columns are widths from 1).

    Ties go to the first candidate, with the smallest width.
    """
    if not candidates or devices < 1:
        raise UsageError(f"A flotilla of {len(candidates)} candidates on {devices} devices: both must be at least 1.")
    fastest = max(candidates, key=lambda model: float(rates[model, 0]))
    reference = float(rates[fastest, 0])
    widths = {fastest: 1}
    others = [model for model in candidates if model != fastest]
    gaps = np.abs(rates[others, :devices] - reference)
    gaps[gaps > delta] = np.inf
    left = devices - 1
    while others and left > 0:
        row, width = find_next(gaps, left)
        if row < 0:
            break
        widths[others[row]] = width
        gaps[row] = np.inf
        left -= width
    for _ in range(left):
        widths[slowest(rates, widths)] += 1
    return widths


def find_next(gaps: Floats, left: int) -> tuple[int, int]:
    """The row and width with the smallest gap to the reference that `left` devices allow; row -1 if there is none."""
    allowed = gaps[:, :left]
    place = int(np.argmin(allowed))
    row, column = divmod(place, allowed.shape[1])
    return (row, column + 1) if np.isfinite(allowed[row, column]) else (-1, 0)


def slowest(rates: Floats, widths: dict[int, int]) -> int:
    """The model with the smallest rate on its devices."""
    return min(widths, key=lambda model: float(rates[model, widths[model] - 1]))
