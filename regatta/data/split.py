"""How many rows each partition gets, and which: every row is in exactly one partition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from numbers import Real

from regatta.data.order import Indices, permutation
from regatta.errors import DataError


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
        raise DataError("The arrays have no rows.")
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
