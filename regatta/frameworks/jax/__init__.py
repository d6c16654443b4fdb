"""JAX: `framework.py` has the verbs, `state.py` the state."""

from regatta.frameworks.jax.framework import next_key
from regatta.frameworks.jax.state import Model

__all__ = ["Model", "next_key"]
