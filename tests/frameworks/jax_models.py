"""Small JAX models, each with something in its state that is easily lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from regatta.frameworks.jax.framework import Model, next_key

WIDTH, CLASSES = 12, 3


def mlp(dtype: Any = jnp.float32) -> dict[str, Any]:
    first, second = next_key(), next_key()
    return {
        "first": {"w": jax.random.normal(first, (WIDTH, 8), dtype), "b": jnp.zeros(8, dtype)},
        "out": {"w": jax.random.normal(second, (8, CLASSES), dtype), "b": jnp.zeros(CLASSES, dtype)},
    }


def logits(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["first"]["w"] + params["first"]["b"])
    return hidden @ params["out"]["w"] + params["out"]["b"]


def entropy(outputs: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()


def classify(params: Any, batch: Any, config: Any) -> Any:
    x, y = batch
    return entropy(logits(params, x.astype(params["out"]["w"].dtype)), y)


def dropout(params: Any, batch: Any, config: Any, key: Any, training: bool = False) -> Any:
    """The key is required, and None in evaluation."""
    x, y = batch
    assert training is (key is not None)
    if training:
        x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)
    return entropy(logits(params, x), y)


def normalised(model: Model, batch: Any, config: Any, training: bool) -> Any:
    """A running mean beside the parameters."""
    x, y = batch
    mean = 0.9 * model.state["mean"] + 0.1 * x.mean(0) if training else model.state["mean"]
    return entropy(logits(model.params, x - mean), y), {"mean": mean, "steps": model.state["steps"] + training}


class Layer(NamedTuple):
    w: Any
    b: Any


def layers(params: Any, batch: Any, config: Any) -> Any:
    x, y = batch
    first, (second, scale) = params
    return entropy((jnp.tanh(x @ first.w + first.b) @ second.w + second.b) * scale, y)


def layered(config: Any) -> Any:
    """Namedtuples, lists and tuples, a number of Python, and arrays of no dimension."""
    start = mlp()
    first = Layer(**start["first"])
    return [first, (Layer(**start["out"]), 1.5)], optax.sgd(config["lr"], momentum=0.9)


def pair(config: Any) -> Any:
    """Parameters that are a tuple of two."""
    return (jax.random.normal(next_key(), (WIDTH, CLASSES)), jnp.zeros(CLASSES)), optax.adam(0.1)


def affine(params: Any, batch: Any, config: Any) -> Any:
    return entropy(batch[0] @ params[0] + params[1], batch[1])


def with_optimizer(optimizer: Callable[[], Any], dtype: Any = jnp.float32) -> Callable[[Any], Any]:
    return lambda config: (mlp(dtype), optimizer())


def running(config: Any) -> Any:
    return Model(mlp(), {"mean": jnp.zeros(WIDTH), "steps": jnp.zeros((), jnp.int32)}), optax.adam(0.05)


class OwnSGD:
    """Not Optax's: anything with its two functions."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def init(self, params: Any) -> Any:
        return {"steps": 0}

    def update(self, gradients: Any, state: Any, params: Any = None) -> Any:
        steps = state["steps"] + 1
        return jax.tree_util.tree_map(lambda g: -self.lr / jnp.sqrt(steps) * g, gradients), {"steps": steps}


def adam_in_parts() -> Any:
    rates = {"first": optax.adam(0.05), "out": optax.sgd(0.1, momentum=0.9)}
    labels = {"first": {"w": "first", "b": "first"}, "out": {"w": "out", "b": "out"}}
    return optax.multi_transform(rates, labels)


MODELS: dict[str, tuple[Callable[[Any], Any], Callable[..., Any]]] = {
    "schedule": (with_optimizer(lambda: optax.adamw(optax.cosine_decay_schedule(0.1, 20))), classify),
    "rates as state": (with_optimizer(lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.05)), classify),
    "noise with a key as state": (with_optimizer(lambda: optax.noisy_sgd(0.05, key=jax.random.key(3))), classify),
    "parts": (with_optimizer(adam_in_parts), classify),
    "every second step": (with_optimizer(lambda: optax.MultiSteps(optax.sgd(0.05, momentum=0.9), 2)), classify),
    "own optimizer": (with_optimizer(lambda: OwnSGD(0.05)), classify),
    "bfloat16": (with_optimizer(lambda: optax.adam(0.05, mu_dtype=jnp.float32), jnp.bfloat16), classify),
    "dropout": (with_optimizer(lambda: optax.adam(0.05)), dropout),
    "running mean": (running, normalised),
    "layers": (layered, layers),
    "tuple": (pair, affine),
}
