"""The four invariants, and all that goes with them, over thousands of random sequences of events."""

from __future__ import annotations

import pytest
from drive_hopper import Play
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regatta.plan.schedule.rule_names import RULES

EXAMPLES = {"milp": 20, "cpsat": 20, "vector": 20, "placed": 120, "auto": 150}

shapes = st.tuples(st.integers(1, 5), st.integers(0, 2), st.integers(1, 4), st.integers(1, 2))
events = st.binary(min_size=8, max_size=50)


def play(rule: str, shape: tuple[int, int, int, int], program: bytes) -> Play:
    played = Play(rule, *shape)
    played.assign()
    for byte in program:
        played.event(byte)
    return played


@pytest.mark.parametrize("rule", RULES)
def test_no_sequence_of_events_breaks_an_invariant(rule: str) -> None:
    @settings(
        max_examples=EXAMPLES.get(rule, 250),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        derandomize=True,
        database=None,
    )
    @given(shapes, events)
    def check(shape: tuple[int, int, int, int], program: bytes) -> None:
        play(rule, shape, program).to_the_end()

    check()


@pytest.mark.parametrize("rule", [name for name in RULES if name != "milp"])  # a time limit is not exact
def test_the_same_events_give_the_same_assignments(rule: str) -> None:
    program = bytes(range(5, 255, 5))
    first, second = (play(rule, (4, 2, 3, 2), program) for _ in range(2))
    first.to_the_end()
    second.to_the_end()
    assert first.assigned == second.assigned
    assert len(first.assigned) > 30
