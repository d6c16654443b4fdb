"""Keras keeps the contract of a framework: compiled models and loss functions, on TensorFlow here.

`test_keras_backends.py` runs this file again on the other backends.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from keras_models import MODELS, WIDTH, arrays, classify, compiled, draw, mlp, noisy, pair, scheduled

from regatta.errors import UsageError
from regatta.frameworks import framework_of, load_framework
from regatta.frameworks.base import Framework
from regatta.frameworks.keras import framework as keras_framework
from regatta.frameworks.keras.state import _as_array
from regatta.store.states.state_files import read_weights
from regatta.testing.frameworks import FrameworkContract, Setting, Subject, WrongBuilds

BACKEND = keras.backend.backend()
WHOLE = ("compiled, dropout and batch norm", "custom loop")
BATCHES = [np.arange(0, 8), np.arange(8, 16), np.arange(16, 20)]


def made(name: str) -> Subject:
    model_fn, loss_fn = MODELS[name]
    setting = Setting(keras.config.floatx, keras.config.set_floatx, "float64")
    return Subject(load_framework("keras"), model_fn, loss_fn, arrays(), draw, setting=setting, precision=1e-6)


class TestKeras(FrameworkContract):
    @pytest.fixture(params=WHOLE)
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        return made(request.param)


class TestMoreOfKeras:
    """Tracing takes its time: of these, the states alone."""

    @pytest.mark.parametrize("name", [name for name in MODELS if name not in WHOLE])
    def test_hopping_does_not_change_later_training(self, name: str, tmp_path: Path) -> None:
        FrameworkContract().test_hopping_does_not_change_later_training(made(name), tmp_path)


def unbuilt() -> Any:
    return keras.Sequential([layers.Dense(3)])


class TestWrongKerasBuilds(WrongBuilds):
    @pytest.fixture
    def framework(self) -> Framework:
        return load_framework("keras")

    @pytest.fixture(
        params=[
            (lambda: None, "model_fn returned None"),
            (lambda: keras.Model, "the class .*Model, not one of its objects"),
            (lambda: layers.Dense(3), "model_fn returned Dense, where a keras.Model belongs"),
            (lambda: (mlp(), 0.1), r"model_fn returned \(model, float\)"),
            (lambda: (mlp(), keras.optimizers.Adam), r"returned \(model, the class Adam"),
            (lambda: (mlp(), keras.optimizers.Adam(), None), "model_fn returned 3 things"),
            (unbuilt, "which has no weights before its first batch"),
        ]
    )
    def wrong_build(self, request: pytest.FixtureRequest) -> tuple[Any, str]:
        make, text = request.param
        return make(), text


def plain_fit(model: Any, batches: list[Any]) -> None:
    """As a reader of Keras's guides would write it."""
    x, y = arrays()
    for rows in batches:
        model.train_on_batch(x[rows], y[rows])


@pytest.mark.parametrize("make", [noisy, scheduled])
def test_a_unit_equals_a_plain_loop_of_keras(make: Callable[..., Any], tmp_path: Path) -> None:
    with keras_framework.seeded(3):
        plain = make({})
    for seed, batches in ((11, BATCHES), (12, BATCHES[:2])):
        with keras_framework.seeded(seed):  # on PyTorch, Keras's dropout draws from its global generator
            plain_fit(plain, batches)
    with keras_framework.seeded(3):
        trainee = keras_framework.assemble(make({}), "cpu")
    with keras_framework.seeded(11):
        keras_framework.train(trainee, arrays(), BATCHES, None, {})
    keras_framework.save(trainee, tmp_path / "state")
    trainee = keras_framework.assemble(make({}), "cpu")
    keras_framework.restore(trainee, keras_framework.read(tmp_path / "state"))
    with keras_framework.seeded(12):
        keras_framework.train(trainee, arrays(), BATCHES[:2], None, {})
    for one, other in zip(plain.variables, trainee.model.variables, strict=True):
        assert same_bits(one, other), one.path
    for one, other in zip(plain.optimizer.variables, trainee.optimizer.variables, strict=True):
        assert same_bits(one, other), one.path


def same_bits(one: Any, other: Any) -> bool:
    return _as_array(one).tobytes() == _as_array(other).tobytes()


def test_a_compiled_model_reports_its_own_metrics() -> None:
    trainee = keras_framework.assemble(noisy({}), "cpu")
    found = keras_framework.evaluate(trainee, arrays(), BATCHES, None, {})
    x, y = arrays()
    loss, accuracy = trainee.model.evaluate(x, y, batch_size=8, verbose=0)
    assert found == pytest.approx({"loss": float(loss), "accuracy": float(accuracy)}, rel=1e-5)
    trained = keras_framework.train(trainee, arrays(), BATCHES, None, {})
    assert trained.keys() == {"loss", "accuracy"}


def test_names_do_not_depend_on_what_was_built_before(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        inner = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(5), layers.Dense(4, name="dense_77")])
        model = keras.Sequential([keras.Input((WIDTH,)), inner, layers.Dropout(0.1), layers.Dense(3, name="head_7")])
        keras_framework.save(keras_framework.assemble(model, "cpu"), tmp_path / "state")
        names.append(list(read_weights(tmp_path / "state")))
    assert names[0] == names[1]
    assert "head_7/kernel" in names[0]
    assert "sequential/dense/kernel" in names[0]
    assert "sequential/dense_1/bias" in names[0]
    assert "seed_generator/seed_generator_state" in names[0]


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    keras_framework.save(keras_framework.assemble(noisy({}), "cpu"), tmp_path / "state")
    state = keras_framework.read(tmp_path / "state")
    other = keras_framework.assemble(compiled(mlp(), "adam"), "cpu")
    with pytest.raises(UsageError, match=r"only in the state: model/batch_normalization/gamma"):
        keras_framework.restore(other, state)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda out: keras.ops.mean(out, axis=1), r"loss_fn returned shape \(.*\); it returns one number"),
        (lambda out: 0.5, "loss_fn returned float"),
        (lambda out: None, "loss_fn returned None"),
    ],
)
def test_a_wrong_loss_is_a_usage_error(loss: Any, text: str) -> None:
    trainee = keras_framework.assemble((mlp(), keras.optimizers.SGD(0.1)), "cpu")
    with pytest.raises(UsageError, match=text):
        keras_framework.train(trainee, arrays(), BATCHES, lambda m, b, c: loss(m(b[0])), {})


def test_calling_a_model_in_the_wrong_mode_is_an_error() -> None:
    trainee = keras_framework.assemble(pair({}), "cpu")
    with pytest.raises(UsageError, match=r"The layer dropout.* behaves differently in training"):
        keras_framework.train(trainee, arrays(), BATCHES, lambda m, b, c: classify(m, b, c, False), {})


def test_a_model_that_is_not_compiled_needs_a_loss() -> None:
    trainee = keras_framework.assemble((mlp(), keras.optimizers.SGD(0.1)), "cpu")
    with pytest.raises(UsageError, match="not compiled, and there is neither loss_fn nor train_fn"):
        keras_framework.train(trainee, arrays(), BATCHES, None, {})


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only graphs remember what they were traced with")
@pytest.mark.parametrize("kind", ["keras", "tensorflow", "variable"])
def test_random_numbers_and_variables_outside_the_model_are_refused(kind: str) -> None:
    import tensorflow as tf

    elsewhere = tf.Variable(1.0)
    noises = {
        "keras": lambda: keras.random.normal(()),
        "tensorflow": lambda: tf.random.normal(()),
        "variable": lambda: elsewhere.assign_add(1.0),
    }
    trainee = keras_framework.assemble((mlp(), keras.optimizers.SGD(0.1)), "cpu")
    refused = pytest.raises(UsageError, match=r"A training step uses .* which is not part of the model")
    with refused, keras_framework.seeded(1):
        keras_framework.train(
            trainee, arrays(), BATCHES, lambda m, b, c: classify(m, b, c, False) * (1 + noises[kind]()), {}
        )


def test_framework_of_recognizes_keras() -> None:
    assert framework_of(mlp()) is keras_framework
    assert framework_of((mlp(), keras.optimizers.SGD())) is keras_framework
