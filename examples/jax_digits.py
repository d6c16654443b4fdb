"""Networks in plain JAX on scikit-learn's digits, with Optax and dropout.

python jax_digits.py
"""

import jax
import jax.numpy as jnp
import optax

import regatta
from regatta.frameworks.jax import next_key


def model_fn(config):
    hidden = config["hidden"]
    params = {
        "w1": jax.random.normal(next_key(), (64, hidden)) / 8,
        "b1": jnp.zeros(hidden),
        "w2": jax.random.normal(next_key(), (hidden, 10)) / hidden**0.5,
        "b2": jnp.zeros(10),
    }
    return params, optax.adam(optax.cosine_decay_schedule(config["lr"], decay_steps=200))


def loss_fn(params, batch, config, key=None):
    x, y = batch
    h = jax.nn.relu(x @ params["w1"] + params["b1"])
    if key is not None:  # in training
        h = jnp.where(jax.random.bernoulli(key, 0.8, h.shape), h / 0.8, 0)
    logits = h @ params["w2"] + params["b2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


data = regatta.Dataset.digits(partitions=2)
space = regatta.search.grid(hidden=[32, 64], lr=[1e-2, 1e-3], batch_size=64)
sweep = regatta.Sweep(data, space, model_fn, loss_fn=loss_fn, epochs=2)

if __name__ == "__main__":
    print(sweep.launch().best)
