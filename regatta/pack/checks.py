"""When members are compared again with the step alone, after the first proof.

A proof shows nothing about later steps: a hyperparameter, an attribute or a rounding may change only then. So some
members are compared at a random step of each epoch and at the last step of each call of `train`. The choice depends
on the seed of the pack alone. A comparison costs a step alone, so few members take part where steps are few.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

STEPS_PER_CHECK = 256  # a call with fewer steps has one comparison, and short epochs share one
MEMBER_STEPS_PER_CHECK = 50_000  # for each further member that is compared


def check_steps(sizes: Sequence[int], whole: int, epoch_steps: int, draw: random.Random) -> list[int]:
    """The numbers of the steps that are compared: one of each epoch, and the last with each size of batches."""
    block, steps = max(epoch_steps, STEPS_PER_CHECK), len(sizes)
    starts = range(0, steps - STEPS_PER_CHECK, block)
    drawn = [draw.randrange(start, min(start + block, steps)) for start in starts]
    last_of_sizes = {size: step for step, size in enumerate(sizes)}.values()
    return sorted({*last_of_sizes, *(step for last in drawn for step in steps_to_compare(sizes, whole, last))})


def steps_to_compare(sizes: Sequence[int], whole: int, last: int) -> list[int]:
    """A step, and the one shortly before it with a whole batch: steps of each size have a kernel of their own."""
    before = (step for step in range(last, max(-1, last - 3), -1) if sizes[step] == whole)
    return sorted({last, next(before, last)})


def members_to_check(members: int, steps: int, draw: random.Random) -> list[int]:
    """The numbers of the members that are compared at one step."""
    return sorted(draw.sample(range(members), min(members, 1 + members * steps // MEMBER_STEPS_PER_CHECK)))
