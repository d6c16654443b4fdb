from __future__ import annotations

import json
import math
import subprocess
import sys
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.configuration import Scalar, canonical, check_configuration, config_id
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


def test_ids_are_the_same_in_every_release() -> None:
    """Journals and checkpoints are found by them: never change these."""
    config = {"lr": 0.001, "name": "ä", "width": 8}
    assert canonical(config) == '{"lr":0.001,"name":"ä","width":8}'
    assert config_id(config) == "4add2322e6"


def test_another_process_agrees() -> None:
    code = "from regatta.configuration import config_id; print(config_id({'b': 1, 'a': 0.5}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == config_id({"a": 0.5, "b": 1})


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
