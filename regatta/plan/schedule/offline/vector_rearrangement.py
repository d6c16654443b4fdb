"""Vector rearrangement: optimal schedules when there are many more models than workers.

After Fiala (1983), as presented by Woeginger (2018) and used in section 4.2 of the Cerebro paper. Pad every worker to
the largest load L. A model's unit times on the p workers, minus the time on the last worker, form a vector of dimension
p - 1, and all vectors sum to zero. By Steinitz's lemma they have an order in which no partial sum is longer than p - 1
times the longest vector, in any norm. In that order, all workers progress alike, never more than (p - 1) Tmax apart.
Let every worker go round this order as round a circle of length L, each starting p Tmax after the previous one. Then no
two workers meet at the same model. The starts must lie at boundaries between models, which costs up to Tmax each. So
the circle is long enough if L >= (p^2 + p - 1) Tmax, and then the makespan is L, which is optimal.

On a shorter circle the starts are spread evenly. If workers meet there, the order is followed without idle time. Every
such schedule ends by L + (p - 1) Tmax: while the last unit waits, its worker or its model is busy.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from regatta.plan.schedule.board import Floats


@dataclass(frozen=True)
class Circle:
    """Starts by (model, worker). `exact`: no two workers meet at a model, so this is an optimal schedule."""

    starts: Floats
    length: float
    exact: bool


def rearrange(times: Floats) -> Circle:
    """A schedule for unit times by (model, worker)."""
    models, p = times.shape
    padded = _padded(times)
    order = steinitz(padded[:, :-1] - padded[:, -1:])
    length = float(padded[:, 0].sum())
    sums = np.vstack([np.zeros(p), np.cumsum(padded[order], axis=0)])  # per worker, before each place in the order
    anchors = _anchors(sums, p * float(times.max(initial=0.0)), length)
    if anchors is None:
        anchors = np.array([sums[bisect_left(sums[:, k], k * length / p, hi=len(order) - 1), k] for k in range(p)])
    starts = np.zeros_like(times)
    for place, model in enumerate(order):
        if model < models:
            starts[model] = (sums[place] - anchors) % length
    return Circle(starts, length, _disjoint(starts, times))


def _disjoint(starts: Floats, times: Floats) -> bool:
    """Whether no model is in two places at once."""
    order = np.argsort(starts, axis=1)
    begins = np.take_along_axis(starts, order, axis=1)
    ends = begins + np.take_along_axis(times, order, axis=1)
    return bool((ends[:, :-1] <= begins[:, 1:] + 1e-9).all())


def _padded(times: Floats) -> Floats:
    """Add rows, none longer than the longest unit, so that every worker has the same load."""
    loads = times.sum(axis=0)
    missing = loads.max() - loads
    longest = times.max()
    rows = int(np.ceil(missing.max() / longest - 1e-9))
    filler = np.stack([np.clip(missing - row * longest, 0.0, longest) for row in range(rows)] or [missing[:0]])
    return np.vstack([times, filler]) if rows else times


def _anchors(sums: Floats, gap: float, length: float) -> Floats | None:
    """Where each worker starts on the circle: at a boundary, `gap` after the previous one. None if it is too short."""
    anchors = [0.0]
    for worker in range(1, sums.shape[1]):
        place = bisect_left(sums[:, worker], anchors[-1] + gap - 1e-9)
        if place >= len(sums):
            return None
        anchors.append(float(sums[place, worker]))
    return np.array(anchors) if length - anchors[-1] >= gap - 1e-9 else None


def steinitz(vectors: Floats) -> list[int]:
    """An order in which partial sums stay within d times the longest vector, after Grinberg and Sevastyanov.

    Drop one vector at a time from the whole set. With k left, there are weights in [0, 1] that sum to k - d and balance
    the vectors. A vertex of these weights for one vector fewer has a zero, and that vector comes last.
    """
    count, dimension = vectors.shape
    alive = list(range(count))
    tail: list[int] = []
    scale = max(1e-300, float(np.abs(vectors).max(initial=0.0)))
    while len(alive) > dimension + 1:
        weights = _corner(vectors[alive] / scale, len(alive) - 1 - dimension)
        tail.append(alive.pop(int(np.argmin(weights))))
    return [*alive, *reversed(tail)]


def _corner(vectors: Floats, total: float) -> Floats:
    from scipy.optimize import linprog

    count = len(vectors)
    found = linprog(
        np.zeros(count),
        A_eq=np.vstack([vectors.T, np.ones(count)]),
        b_eq=np.concatenate([np.zeros(vectors.shape[1]), [total]]),
        bounds=(0.0, 1.0),
        method="highs-ds",  # the simplex method ends in a vertex
    )
    return np.asarray(found.x, dtype=np.float64)
