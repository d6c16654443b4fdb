"""JAX: `framework.py` has the verbs, `state.py` the state."""

from regatta.frameworks.jax.framework import Model, next_key

__all__ = ["Model", "next_key"]
