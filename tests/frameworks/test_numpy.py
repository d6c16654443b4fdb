"""The NumPy reference keeps the contract of a framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regatta.errors import UsageError
from regatta.frameworks import framework_of, load_framework
from regatta.frameworks import numpy as numpy_framework
from regatta.frameworks.base import Framework
from regatta.frameworks.numpy import SGD
from regatta.testing.frameworks import FrameworkContract, Subject, WrongBuilds


def plain(config: Any) -> Any:
    return {"w": np.random.normal(size=(4, 2)), "b": np.zeros(2)}, SGD(config["lr"])


def momentum(config: Any) -> Any:
    return {"w": np.random.normal(size=(4, 2)), "b": np.zeros(2)}, SGD(config["lr"], momentum=0.9)


def odd(config: Any) -> Any:
    """Small floats, no dimensions, columns first, and arrays that no gradient touches."""
    weights = {
        "w": np.asfortranarray(np.random.normal(size=(4, 2)).astype(np.float32)),
        "b": np.zeros(2, np.float16),
        "scale": np.array(1.0, np.float32),
        "none": np.zeros((0, 3)),
        "special": np.array([np.nan, -np.inf, -0.0, 5e-324]),
        "mask": np.array([True, False]),
    }
    return weights, SGD(config["lr"], momentum=0.5)


def squares(weights: Any, batch: Any, config: Any) -> Any:
    x, y = batch
    scale = weights.get("scale", np.float64(1.0))
    raw = x @ weights["w"]
    error = raw * scale + weights["b"] - y
    gradients = {"w": x.T @ error * scale / len(x), "b": error.mean(0)}
    if "scale" in weights:
        gradients["scale"] = (raw * error).mean()
        gradients = {name: np.asarray(g, weights[name].dtype) for name, g in gradients.items()}
    return (error**2).mean() / 2, gradients


def arrays() -> tuple[Any, ...]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(20, 4)), generator.normal(size=(20, 2))


class TestNumpy(FrameworkContract):
    @pytest.fixture(params=[plain, momentum, odd], ids=lambda made: made.__name__)
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        return Subject(load_framework("numpy"), request.param, squares, arrays(), lambda: float(np.random.rand()))


class TestWrongNumpyBuilds(WrongBuilds):
    @pytest.fixture
    def framework(self) -> Framework:
        return load_framework("numpy")

    @pytest.fixture(
        params=[
            (None, "model_fn returned None"),
            ({}, "model_fn returned dict"),
            ({"w": [1.0]}, "model_fn returned dict, where a dict of arrays belongs"),
            (({"w": np.zeros(1)}, 0.1), r"model_fn returned \(dict, float\)"),
            (({"w": np.zeros(1)}, SGD), r"model_fn returned \(dict, the class SGD"),
            (({"w": np.zeros(1)}, SGD(0.1), 1), r"model_fn returned \(dict, SGD, int\)"),
        ],
        ids=lambda pair: pair[1],
    )
    def wrong_build(self, request: pytest.FixtureRequest) -> tuple[Any, str]:
        return request.param


def test_framework_of_recognizes_numpy() -> None:
    assert framework_of(plain({"lr": 0.1})) is numpy_framework
    assert framework_of({"w": np.zeros(1)}) is numpy_framework


def test_the_optimizer_is_sgd_with_momentum() -> None:
    weights = {"w": np.array([1.0, 2.0])}
    optimizer = SGD(lr=0.5, momentum=0.5)
    optimizer.step(weights, {"w": np.array([1.0, 0.0])})
    optimizer.step(weights, {"w": np.array([1.0, 1.0])})
    assert weights["w"].tolist() == [1.0 - 0.5 - 0.75, 2.0 - 0.5]


def test_data_may_be_a_dict() -> None:
    x, y = arrays()
    seen: list[Any] = []

    def loss(weights: Any, batch: Any, config: Any) -> Any:
        seen.append(batch)
        return 0.0, {}

    data = numpy_framework.prepare({"x": x, "y": y}, "cpu")
    assert numpy_framework.rows(data) == 20
    numpy_framework.train(numpy_framework.assemble(plain({"lr": 0.1}), "cpu"), data, [np.array([3, 1])], loss, {})
    assert seen[0]["y"].tobytes() == y[[3, 1]].tobytes()


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.array([1, "x"], object), np.zeros(2, "datetime64[s]")])
def test_arrays_that_cannot_be_saved_are_named(array: Any, tmp_path: Path) -> None:
    trainee = numpy_framework.assemble({"names": array}, "cpu")
    with pytest.raises(UsageError, match=r"model/names is an array of dtype .* which cannot travel"):
        numpy_framework.save(trainee, tmp_path / "state")


def test_byte_order_of_other_machines_survives(tmp_path: Path) -> None:
    trainee = numpy_framework.assemble({"w": np.arange(3, dtype=">f8")}, "cpu")
    numpy_framework.save(trainee, tmp_path / "state")
    fresh = numpy_framework.assemble({"w": np.zeros(3)}, "cpu")
    numpy_framework.restore(fresh, numpy_framework.read(tmp_path / "state"))
    assert fresh.model["w"].tolist() == [0.0, 1.0, 2.0]
