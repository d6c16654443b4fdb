"""Small Keras models for any backend, each with something in its state that is easily lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

WIDTH, CLASSES = 12, 3


def arrays(rows: int = 20) -> tuple[Any, ...]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(rows, WIDTH)).astype(np.float32), generator.integers(0, CLASSES, rows)


def draw() -> float:
    return float(keras.random.uniform(()))


def mlp(*between: Any) -> keras.Model:
    return keras.Sequential([keras.Input((WIDTH,)), layers.Dense(8, "tanh"), *between, layers.Dense(CLASSES)])


def compiled(model: keras.Model, optimizer: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, metrics=["accuracy"])
    return model


def noisy(config: Any) -> Any:
    """Dropout, running means and Adam: a seed generator, statistics and moments."""
    return compiled(mlp(layers.BatchNormalization(), layers.Dropout(0.5)), keras.optimizers.Adam(0.05))


def scheduled(config: Any) -> Any:
    rate = keras.optimizers.schedules.CosineDecay(0.1, 20)
    return compiled(mlp(), keras.optimizers.SGD(rate, momentum=0.9, nesterov=True))


def pair(config: Any) -> Any:
    return mlp(layers.Dropout(0.3)), keras.optimizers.AdamW(0.05)


def frozen(config: Any) -> Any:
    """Two inputs, shared and nested layers, one that does not train."""
    inputs = keras.Input((WIDTH,))
    shared = layers.Dense(WIDTH, "tanh", name="shared")
    inner = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(8), layers.LayerNormalization()])
    still = layers.Dense(8, trainable=False)
    joined = layers.Add()([inner(shared(shared(inputs))), still(inputs)])
    model = keras.Model(inputs, layers.Dense(CLASSES)(joined))
    return compiled(model, keras.optimizers.RMSprop(0.01, momentum=0.5))


class Own(keras.Model):
    """A model with its own train_step, and a variable that no layer has."""

    def __init__(self) -> None:
        super().__init__()
        self.out = layers.Dense(CLASSES)
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen", dtype="int32")
        self.noise = keras.random.SeedGenerator()

    def build(self, shape: Any) -> None:
        self.out.build(shape)
        super().build(shape)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.seen.assign_add(1)
            x = x + 0.1 * keras.random.normal(keras.ops.shape(x), seed=self.noise)
        return self.out(x)


def own(config: Any) -> Any:
    model = Own()
    model.build((None, WIDTH))
    return compiled(model, keras.optimizers.Adagrad(0.1))


def classify(model: Any, batch: Any, config: Any, training: bool) -> Any:
    x, y = batch
    outputs = model(x, training=training)
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True))


MODELS: dict[str, tuple[Callable[[Any], Any], Callable[..., Any] | None]] = {
    "compiled, dropout and batch norm": (noisy, None),
    "compiled, schedule and momentum": (scheduled, None),
    "custom loop": (pair, classify),
    "custom loop of a compiled model": (noisy, classify),
    "nested, shared and frozen": (frozen, None),
    "own model": (own, None),
}
