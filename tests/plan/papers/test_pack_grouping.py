"""pack_opt: every candidate once, within the limit, and each heuristic as in the paper."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.plan.papers.pack_grouping import (
    PackingCandidate,
    at_random,
    by_batch_size,
    by_rate,
    distance,
    measured_seconds,
    nearest,
)

SPACE = {
    "batch_size": list(range(20, 75, 5)),
    "optimizer": ["Adam", "SGD", "Adagrad", "Momentum"],
    "lr": [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1],
    "activation": ["Sigmoid", "LeakyReLU", "Tanh", "ReLU"],
}


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[PackingCandidate], int]:
    config = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in SPACE.items()})
    parts = draw(st.lists(st.tuples(config, st.integers(0, 50), st.integers(1, 9)), max_size=20))
    found = [PackingCandidate(str(i), c, size, steps, "ab"[i % 2]) for i, (c, size, steps) in enumerate(parts)]
    return found, draw(st.integers(1, 100))


@given(problems())
def test_every_grouping_has_each_candidate_once_within_the_limit(problem: tuple[list[PackingCandidate], int]) -> None:
    candidates, limit = problem
    groupings = (
        by_batch_size(candidates, limit),
        at_random(candidates, limit),
        nearest(candidates, limit, SPACE),
        nearest(candidates, limit, SPACE, threshold=3),
        by_rate(candidates, limit),
        by_rate(candidates, limit, lambda kind, n: 1 + 0.1 * n * n),
    )
    for groups in groupings:
        assert sorted(c.name for group in groups for c in group) == sorted(c.name for c in candidates)
        assert all(groups)
        assert all(sum(c.peak_bytes for c in group) <= limit or len(group) == 1 for group in groups)
    assert all(len({c.config["batch_size"] for c in group}) == 1 for group in groupings[0])
    assert all(len({c.kind for c in group}) == 1 for group in groupings[4])


def test_the_papers_example_of_a_distance() -> None:
    one = {"batch_size": 20, "optimizer": "SGD", "lr": 0.01, "activation": "ReLU"}
    other = {"batch_size": 40, "optimizer": "Adagrad", "lr": 0.01, "activation": "ReLU"}
    assert distance(one, other, SPACE) == distance(other, one, SPACE) == 5
    assert distance(one, one, SPACE) == 0


def test_nearest_candidates_are_grouped() -> None:
    sizes = [20, 70, 25, 65, 30, 60]
    base = {"optimizer": "SGD", "lr": 0.01, "activation": "ReLU"}
    candidates = [PackingCandidate(str(size), {"batch_size": size, **base}, 1) for size in sizes]
    for seed in range(5):
        groups = nearest(candidates, 3, SPACE, seed=seed)
        first = sorted(c.config["batch_size"] for c in groups[0])
        assert first[-1] - first[0] <= 10


def test_rates_decide_the_size_of_groups() -> None:
    candidates = [PackingCandidate(str(i), peak_bytes=1, steps=i) for i in range(8)]
    # A step of up to four members costs as much as one; each further member costs a whole step.
    curve = measured_seconds({("", 1): 1.0, ("", 4): 1.0, ("", 8): 5.0})
    groups = by_rate(candidates, 100, curve)
    assert [sorted(c.steps for c in group) for group in groups] == [[4, 5, 6, 7], [0, 1, 2, 3]]
    alone = by_rate(candidates, 100, lambda kind, n: float(n * n))
    assert all(len(group) == 1 for group in alone)  # do not pack
    assert len(by_rate(candidates, 100)) == 1


@pytest.mark.parametrize(("n", "seconds"), [(1, 1.0), (2, 1.5), (3, 2.0), (6, 4.0)])
def test_times_between_and_beyond_measured_sizes(n: int, seconds: float) -> None:
    assert measured_seconds({("a", 1): 1.0, ("a", 3): 2.0, ("b", 1): 9.0})("a", n) == pytest.approx(seconds)


def test_grouping_imports_no_framework() -> None:
    code = "import sys, regatta.plan.papers.pack_grouping; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
