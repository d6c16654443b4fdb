"""How many rows each partition gets, and which: every row is in exactly one partition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from numbers import Real

import numpy as np

from regatta.data.order import Indices, permutation
from regatta.errors import DataError
from regatta.format import brief

EVAL_FRACTION = 0.2  # of the rows, where no test split is given


def plan_partitions(
    rows: int,
    held_out_rows: int | None,
    partitions: int,
    eval_fraction: float,
    eval_partitions: int | None,
    seed: int,
    proportions: Sequence[float] | None,
) -> tuple[list[Indices], list[Indices]]:
    """Row numbers of all partitions. Those for evaluation are drawn, or count `held_out_rows` that were given."""
    counts = {"partitions": (partitions, 1), "eval_partitions": (eval_partitions or 0, 0), "seed": (seed, 0)}
    for what, (count, least) in counts.items():
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < least:
            raise DataError(f"{what} is {brief(count)}; it must be a whole number from {least}.")
    shares = [1.0] * partitions if proportions is None else list(proportions)
    if held_out_rows is None:
        return split_rows(rows, partitions, eval_fraction, eval_partitions, seed, shares)
    if eval_fraction not in (EVAL_FRACTION, 0):
        raise DataError(
            f"eval_fraction is {brief(eval_fraction)}, but eval is given as well.",
            hint="Leave out eval_fraction to evaluate on eval, or eval to draw rows from the training data.",
        )
    if held_out_rows == 0:
        raise DataError("eval has no rows.", hint="Leave it out, to draw rows from the training data.")
    count = min(partitions, held_out_rows) if eval_partitions is None else eval_partitions
    sizes = apportion(held_out_rows, count, [1.0] * count, "evaluation")
    training, _ = split_rows(rows, partitions, 0.0, None, seed, shares)
    return training, _cut(np.arange(held_out_rows), sizes)


def split_rows(
    rows: int,
    partitions: int,
    eval_fraction: float,
    eval_partitions: int | None,
    seed: int,
    proportions: Sequence[float],
) -> tuple[list[Indices], list[Indices]]:
    """Row numbers of the training and of the evaluation partitions, shuffled once."""
    if rows == 0:
        raise DataError("The training data has no rows.")
    held_out = evaluation_rows(rows, eval_fraction)
    if eval_partitions is None:
        eval_partitions = min(partitions, held_out)
    if held_out == 0 and eval_partitions:
        raise DataError(f"{eval_partitions} evaluation partitions were asked for, but eval_fraction is 0.")
    order = permutation(rows, seed)
    training = apportion(rows - held_out, partitions, proportions, "training")
    evaluation = apportion(held_out, eval_partitions, [1.0] * eval_partitions, "evaluation") if held_out else []
    return _cut(order[held_out:], training), _cut(order[:held_out], evaluation)


def evaluation_rows(rows: int, fraction: float) -> int:
    """The number of rows for evaluation, rounded; at least one unless the fraction is 0."""
    if not 0.0 <= fraction < 1.0:
        raise DataError(f"eval_fraction is {fraction}; it must be at least 0 and less than 1.")
    return max(1, round(rows * fraction)) if fraction > 0 else 0


def apportion(rows: int, partitions: int, proportions: Sequence[float], what: str) -> list[int]:
    """Sizes in proportion by largest remainders, none of them zero. Equal proportions differ by at most one row."""
    if partitions < 1:
        raise DataError(f"The number of {what} partitions is {partitions}; it must be at least 1.")
    if rows < partitions:
        raise DataError(
            f"There are {rows} {what} rows for {partitions} partitions; each needs at least one.",
            hint="Use fewer partitions, more data, or another eval_fraction.",
        )
    received = f"proportions are {list(proportions)!r}"
    if len(proportions) != partitions:
        raise DataError(f"The {received}: {len(proportions)} numbers for {partitions} partitions.")
    if not all(_is_share(share) for share in proportions):
        raise DataError(f"The {received}; each must be a finite number greater than 0.")
    # Exact fractions: with floats, a quota just below a whole number may round up and assign one row too many.
    shares = [Fraction(float(share)) for share in proportions]
    quotas = [share * rows / sum(shares) for share in shares]
    sizes = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(partitions), key=lambda j: sizes[j] - quotas[j])
    for j in by_remainder[: rows - sum(sizes)]:
        sizes[j] += 1
    while 0 in sizes:
        sizes[sizes.index(max(sizes))] -= 1
        sizes[sizes.index(0)] += 1
    return sizes


def _is_share(share: object) -> bool:
    return isinstance(share, Real) and math.isfinite(share) and float(share) > 0


def _cut(order: Indices, sizes: Sequence[int]) -> list[Indices]:
    return [order[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]
