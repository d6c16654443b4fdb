"""The loop of an evaluation: compute bounds for all open inputs, read the next plane of some tensors, and repeat.

The leading bytes bound each weight, and those bounds give a bound on the margin between any two classes. A label is
certain if its margin to every other class is positive for every possible value of the unread bytes. The bounds that
failed tell which tensor comes next: the one whose unread bits cost the most margin per byte of its next plane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.errors import UsageError
from regatta.network.bounds import BoundedNetwork, ForwardPass, NotBounded
from regatta.network.graph import Network
from regatta.network.torch.to_torch import outputs
from regatta.repo.evaluate.progressive_weights import LEADING, ProgressiveWeights
from regatta.repo.evaluate.result import Stage

Inputs = NDArray[Any]
Places = NDArray[np.intp]

FIRST_BATCH_INPUTS, MAX_BATCH_NUMBERS = 16, 2**22  # the numbers are those in the layers of a batch
MIN_READ_SHARE = 1 / 200  # of all bytes, before bounds are worth computing again
SLOW_SHARE = 0.05  # of the open inputs; if fewer become certain, more is read at a time
MAX_BACKWARD_FAILURES = 64  # inputs without success, after which a stage gives up the backward bound
BACKWARD_SAMPLE = (
    64  # inputs that get the backward bound, where more may be read: it says what to read, intervals decide
)
TIGHT_BATCH_INPUTS, MAX_TIGHT_FAILURES = 4, 8  # inputs in a row without success, after which a stage gives up


@dataclass
class Answers:
    """The labels so far; `stage` is -1 for labels that are not certain."""

    labels: NDArray[np.int64]
    stage: NDArray[np.int64]
    stages: list[Stage] = field(default_factory=list)

    @property
    def open(self) -> Places:
        return np.flatnonzero(self.stage < 0)


@dataclass
class StageResult:
    """The result of one stage for its inputs; `costs` is the margin that open pairs lose to each tensor."""

    labels: NDArray[np.int64]
    sure: NDArray[np.bool_]
    intervals: int
    costs: dict[str, float]


def progress(
    network: Network, reading: ProgressiveWeights, x: Inputs, top_k: int, planes: int | None, budget: float | None
) -> tuple[Answers, str | None]:
    """Labels from bounds, and the reason why a layer or a weight has no bounds, if there is one.

    The class to be certified is that of the model with the weights in the middle of their bounds. With `planes` or a
    `budget`, where no more may be read, the bounds are made as tight as they can be.

    The loop ends when all labels are certain or all weights are read; with `planes`, after that many planes; with a
    `budget`, before more than that share of the bytes is read.
    """
    answers = Answers(np.zeros((len(x), top_k), np.int64), np.full(len(x), -1, np.int64))
    reading.deepen(reading.names, planes or LEADING)
    read, share = f"{planes or LEADING} leading planes", MIN_READ_SHARE
    tight = planes is not None or budget is not None
    while True:
        if (name := reading.nonfinite_tensor()) is not None:
            return answers, f"{name!r} has weights that are NaN or infinite"
        try:
            bounded, left = BoundedNetwork(network, reading.boxes), x[answers.open]
            found = judge(
                bounded, left, outputs(network, reading.middle(), left), top_k, may_read=not tight, tight=tight
            )
        except NotBounded as error:
            return answers, str(error)
        certified = _enter(answers, found, read, reading.bytes_read)
        if planes is not None or not len(answers.open) or not reading.unread:
            return answers, None
        share = share * 2 if certified < SLOW_SHARE * len(found.sure) else share
        chosen = choose(reading, found.costs, share, budget)
        if not chosen:
            return answers, None
        read = _planes_text(reading, chosen)
        reading.deepen(chosen)


def _enter(answers: Answers, found: StageResult, read: str, bytes_read: int) -> int:
    looked_at, number = answers.open, len(answers.stages)
    answers.labels[looked_at] = found.labels
    answers.stage[looked_at[found.sure]] = number
    certified = int(found.sure.sum())
    answers.stages.append(Stage(read, bytes_read, len(looked_at), found.intervals, certified - found.intervals))
    return certified


def choose(reading: ProgressiveWeights, costs: dict[str, float], share: float, budget: float | None) -> list[str]:
    """The tensors whose next planes gain most per byte, up to this share of all bytes."""
    full = reading.bytes_full
    left = np.inf if budget is None else budget * full - reading.bytes_read
    prices = {name: reading.cost(name) for name in reading.unread}
    order = sorted(prices, key=lambda name: (-costs.get(name, 0.0) / max(prices[name], 1), prices[name]))
    chosen: list[str] = []
    taken = 0
    for name in order:
        if taken >= share * full:
            break
        if taken + prices[name] <= left:
            chosen.append(name)
            taken += prices[name]
    return chosen


def _planes_text(reading: ProgressiveWeights, names: Sequence[str]) -> str:
    by_plane: dict[int, list[str]] = {}
    for name in names:
        by_plane.setdefault(reading.planes[name] + 1, []).append(name)
    return "; ".join(f"plane {plane} of {', '.join(found)}" for plane, found in sorted(by_plane.items()))


def judge(
    bounded: BoundedNetwork, x: Inputs, middle: Inputs, top_k: int, *, may_read: bool = False, tight: bool = False
) -> StageResult:
    """Find the labels that are certain, by intervals, or else by the backward bound.

    `middle` are the outputs of the model with weights in the middle of their bounds, which give the labels. If more
    may be read, only some inputs get the backward bound: a small part of the next bytes helps the others for less.
    """
    best = ahead(middle, top_k) if len(x) else np.zeros((0, top_k), np.int64)
    found = StageResult(best, np.zeros(len(x), bool), 0, {})
    tried = won = 0
    for start, passed in _batches(bounded, x):
        count = len(passed.known)
        rows, better, worse = _pairs(best[start : start + count], passed.logits.shape[1])
        least = bounded.margins(passed, rows, better, worse, whole=False).least
        sure = _all_closed(count, rows, least > 0)
        found.intervals += int(sure.sum())
        some = np.flatnonzero(~sure)[: BACKWARD_SAMPLE - tried if may_read else None]
        if len(some) and (won or tried < MAX_BACKWARD_FAILURES):
            tried += len(some)
            left = ~(least > 0) & np.isin(rows, some)
            decided = _backward(bounded, passed, (rows[left], better[left], worse[left]), least[left], count, found)
            sure[some] = decided[some]
            won += int(sure[some].sum())
        found.sure[start : start + count] = sure
    if tight and bounded.bent:
        _judge_tightly(bounded, x, middle, found)
    return found


def _judge_tightly(bounded: BoundedNetwork, x: Inputs, middle: Inputs, found: StageResult) -> None:
    """The same for inputs that are still open, with tight bounds, the widest margins first."""
    top_k = found.labels.shape[1]
    ordered = np.sort(np.nan_to_num(middle), axis=1)
    left = np.flatnonzero(~found.sure)
    left = left[np.argsort(-(ordered[left, -top_k] - ordered[left, -top_k - 1]), kind="stable")]
    failures = 0
    for at in range(0, len(left), TIGHT_BATCH_INPUTS):
        if failures >= MAX_TIGHT_FAILURES:
            return
        part = left[at : at + TIGHT_BATCH_INPUTS]
        passed = bounded.forward(x[part], tight=True)
        pairs = rows, better, worse = _pairs(found.labels[part], middle.shape[1])
        apart = middle[part[rows], better] - middle[part[rows], worse]
        found.sure[part] = sure = _backward(bounded, passed, pairs, apart, len(part), found)
        failures = 0 if sure.any() else failures + len(part)


def _backward(
    bounded: BoundedNetwork,
    passed: ForwardPass,
    pairs: tuple[Places, Places, Places],
    margins: NDArray[np.float64],
    count: int,
    found: StageResult,
) -> NDArray[np.bool_]:
    """The inputs for which the backward bound decides all open pairs; the costs of the others are added up.

    The pair of each input with the smallest margin comes first. If it stays open, the others need not be decided.
    """
    rows = pairs[0]
    order = np.lexsort((np.nan_to_num(margins, nan=-np.inf), rows))
    is_first = np.zeros(len(rows), bool)
    is_first[order[np.unique(rows[order], return_index=True)[1]]] = True
    closed = np.zeros(len(rows), bool)
    closed[is_first] = _closed(bounded, passed, [part[is_first] for part in pairs], found)
    hopeful = ~is_first & np.isin(rows, rows[closed])
    closed[hopeful] = _closed(bounded, passed, [part[hopeful] for part in pairs], found)
    return _all_closed(count, rows, closed)


def _closed(
    bounded: BoundedNetwork, passed: ForwardPass, pairs: Sequence[Places], found: StageResult
) -> NDArray[np.bool_]:
    rows, better, worse = pairs
    closed, room = np.zeros(len(rows), bool), max(16, MAX_BATCH_NUMBERS // max(1, _numbers(passed)))
    for at in range(0, len(rows), room):
        part = slice(at, at + room)
        margins = bounded.margins(passed, rows[part], better[part], worse[part], whole=True)
        closed[part] = margins.least > 0
        for name, cost in margins.costs.items():
            found.costs[name] = found.costs.get(name, 0.0) + float(np.nansum(cost[~closed[part]]))
    return closed


def _batches(bounded: BoundedNetwork, x: Inputs) -> Iterator[tuple[int, ForwardPass]]:
    """Batches through the network, as large as the memory for their layers allows."""
    at, size = 0, FIRST_BATCH_INPUTS
    while at < len(x):
        passed = bounded.forward(x[at : at + size])
        yield at, passed
        at, size = at + size, max(1, min(1024, MAX_BATCH_NUMBERS // max(1, _numbers(passed))))


def _numbers(passed: ForwardPass) -> int:
    """The numbers that the layers hold for one input."""
    held = sum(trace.ball.centre.size for trace in passed.traces.values() if trace.batched)
    return held // max(1, len(passed.known))


def _pairs(best: NDArray[np.int64], classes: int) -> tuple[Places, Places, Places]:
    """All pairs of one of the best classes and one of the others, for each input."""
    count, top_k = best.shape
    others = np.ones((count, classes), bool)
    np.put_along_axis(others, best, False, axis=1)
    rest = np.nonzero(others)[1].reshape(count, classes - top_k)
    rows = np.repeat(np.arange(count), top_k * (classes - top_k))
    better = np.repeat(best, classes - top_k, axis=1).reshape(-1)
    return rows, better, np.tile(rest, (1, top_k)).reshape(-1)


def ahead(outputs: NDArray[Any], top_k: int) -> NDArray[np.int64]:
    """The classes with the k greatest outputs, in ascending order; of equal ones the first. NaN is the greatest."""
    if outputs.ndim != 2 or outputs.shape[1] <= top_k:
        raise UsageError(
            f"The network's output has the shape {outputs.shape}; for the {top_k} best classes it has to be a row of "
            f"more than {top_k} numbers for each input.",
            hint="Networks that classify each input as a whole can be evaluated.",
        )
    strange = np.isnan(outputs)  # as PyTorch's argmax and topk have it
    order = np.lexsort((-np.where(strange, 0.0, outputs), ~strange), axis=1)[:, :top_k]
    return np.sort(order, axis=1).astype(np.int64)


def _all_closed(count: int, rows: Places, closed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    sure = np.ones(count, bool)
    sure[rows[~closed]] = False
    return sure
