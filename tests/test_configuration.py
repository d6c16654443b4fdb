from __future__ import annotations

import json
import math
import subprocess
import sys
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.configuration import (
    Scalar,
    canonical,
    check_configuration,
    config_id,
    derive_seed,
    initial_seed,
    unit_seed,
)
from regatta.errors import UsageError

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
configurations = st.dictionaries(st.text(min_size=1, max_size=6), scalars, max_size=6)


@given(configurations, st.randoms(use_true_random=False))
def test_the_order_of_names_does_not_matter(config: dict[str, Scalar], random: Random) -> None:
    names = list(config)
    random.shuffle(names)
    shuffled = {name: config[name] for name in names}
    assert canonical(config) == canonical(shuffled)
    assert config_id(config) == config_id(shuffled)
    assert initial_seed(1, config) == initial_seed(1, shuffled)


@given(configurations)
def test_the_canonical_text_is_the_configuration(config: dict[str, Scalar]) -> None:
    read = json.loads(canonical(config))
    assert read == config
    assert canonical(read) == canonical(config)
    assert check_configuration(config) == config


@given(configurations, configurations)
def test_different_configurations_have_different_ids(one: dict[str, Scalar], other: dict[str, Scalar]) -> None:
    assert (config_id(one) == config_id(other)) == (canonical(one) == canonical(other))


def test_types_are_part_of_the_value() -> None:
    assert len({config_id({"a": value}) for value in (1, 1.0, True, "1", None)}) == 5


def test_ids_and_seeds_are_the_same_in_every_release() -> None:
    """Journals and checkpoints are found by them: never change these."""
    config = {"lr": 0.001, "name": "ä", "width": 8}
    assert canonical(config) == '{"lr":0.001,"name":"ä","width":8}'
    assert config_id(config) == "4add2322e6"
    assert initial_seed(7, config) == 5664791903498715861
    assert unit_seed(7, config, 2, 3) == 1290266812902480077


def test_another_process_agrees() -> None:
    code = "from regatta.configuration import config_id; print(config_id({'b': 1, 'a': 0.5}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == config_id({"a": 0.5, "b": 1})


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


def test_numpy_scalars_become_plain() -> None:
    checked = check_configuration({"lr": np.float32(0.5), "n": np.int64(3), "flag": np.bool_(True), "z": np.array(2)})
    assert checked == {"lr": 0.5, "n": 3, "flag": True, "z": 2}
    assert [type(value) for value in checked.values()] == [float, int, bool, int]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([("lr", 0.1)], "not [("),
        (None, "not None"),
        ({1: 2}, "not 1"),
        ({"": 2}, "not ''"),
        ({"lr": math.nan}, "'lr' is nan"),
        ({"lr": math.inf}, "'lr' is inf"),
        ({"lr": np.float32("nan")}, "'lr' is nan"),
        ({"layers": [1, 2]}, "'layers' is [1, 2];"),
        ({"act": math.tanh}, "inside model_fn"),
        ({"x": np.zeros(2)}, "a ndarray"),
        ({"x": 1j}, "is 1j;"),
    ],
)
def test_invalid_configurations(config: object, message: str) -> None:
    with pytest.raises(UsageError) as error:
        check_configuration(config)
    assert message in str(error.value)
