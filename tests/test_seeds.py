from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from regatta.seeds import derive_seed, initial_seed, unit_seed


def test_the_order_of_names_does_not_matter() -> None:
    assert initial_seed(1, {"a": 1, "b": 2}) == initial_seed(1, {"b": 2, "a": 1})


def test_seeds_are_the_same_in_every_release() -> None:
    """Journals and checkpoints are found by them: never change these."""
    config = {"lr": 0.001, "name": "ä", "width": 8}
    assert initial_seed(7, config) == 5664791903498715861
    assert unit_seed(7, config, 2, 3) == 1290266812902480077


@given(st.integers(0, 2**63), st.integers(0, 100), st.integers(0, 100))
def test_seeds_fit_every_generator(run_seed: int, epoch: int, partition: int) -> None:
    assert 0 <= unit_seed(run_seed, {"lr": 0.1}, epoch, partition) < 2**63


def test_seeds_differ_wherever_what_is_trained_differs() -> None:
    cases = [
        *(
            unit_seed(run, {"lr": lr}, epoch, part)
            for run, lr, epoch, part in product((0, 1), (0.1, 0.2), (1, 11), (1, 11))
        ),
        *(initial_seed(run, {"lr": lr}) for run, lr in product((0, 1), (0.1, 0.2))),
        derive_seed(0),
        derive_seed(0, 1, 11),
        derive_seed(0, 11, 1),
        derive_seed(0, "1", 11),
    ]
    assert len(set(cases)) == len(cases)
