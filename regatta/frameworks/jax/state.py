"""The state of a JAX trainee: pytrees saved to a file, and restored into the structure of a fresh build.

Leaves are named by their places: `model/...` for parameters, `buffers/...` for the state beside them, `optimizer/...`
for the state of the optimizer. Only arrays are saved; containers such as namedtuples come from `model_fn`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regatta.frameworks.arrays import ArrayState, check_same_variables, unique_names, write_arrays

if TYPE_CHECKING:
    from regatta.frameworks.jax.framework import JaxTrainee

NAME = "jax"
_PARTS = {"model": "params", "buffers": "state", "optimizer": "opt_state"}


@dataclass(eq=False)
class Model:
    """Parameters, and a `state` that a pass over a batch changes without gradients, such as running means.

    If model_fn returns a Model instead of bare parameters, the other functions get a Model too. With a `state`, the
    loss_fn returns (loss, new state).
    """

    params: Any
    state: Any = None
    opt_state: Any = None


def is_array(leaf: object) -> bool:
    """Whether JAX can compute with a leaf: an array of numbers, or a number."""
    jax = sys.modules["jax"]
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind in "biufcV"  # V: the types of ml_dtypes
    return isinstance(leaf, bool | int | float | complex | jax.Array)


def save(trainee: JaxTrainee, path: Path) -> None:
    tree: dict[str, list[str]] = {}
    found: dict[str, NDArray[Any]] = {}
    weak, keys = [], []
    for part, attribute in _PARTS.items():
        leaves = _named_leaves(part, getattr(trainee.whole, attribute))
        tree[part] = list(leaves)
        for name, leaf in leaves.items():
            if _is_key(leaf):
                keys.append(name)
            elif getattr(leaf, "weak_type", False):
                weak.append(name)
            found[name] = _as_array(leaf)
    write_arrays(path, NAME, found, tree, weak=weak, keys=keys)


def restore(trainee: JaxTrainee, state: ArrayState) -> None:
    import jax

    for part, attribute in _PARTS.items():
        if part == "optimizer" and trainee.optimizer is None:
            continue  # a model that is only evaluated
        fresh = getattr(trainee.whole, attribute)
        leaves = _named_leaves(part, fresh)
        check_same_variables(part, state.meta["tree"].get(part), list(leaves))
        values = [_as_leaf(name, leaf, state, trainee.device) for name, leaf in leaves.items()]
        structure = jax.tree_util.tree_structure(fresh)
        setattr(trainee.whole, attribute, jax.tree_util.tree_unflatten(structure, values))


def unsaved_values(trainee: JaxTrainee) -> dict[str, Any]:
    return {}  # a pytree has nothing else


def _named_leaves(part: str, tree: Any) -> dict[str, Any]:
    import jax

    pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
    places = ["/".join([part, *(_path_part(key) for key in path)]) for path, _ in pairs]
    return dict(zip(unique_names(places), (leaf for _, leaf in pairs), strict=True))


def _path_part(key: Any) -> str:
    """One part of the path to a leaf: the key of a dict, the index of a list or the name of a field."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _is_key(leaf: Any) -> bool:
    import jax

    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_array(leaf: Any) -> NDArray[Any]:
    import jax

    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _as_leaf(name: str, fresh: Any, state: ArrayState, device: Any) -> Any:
    """The saved array of a leaf, on the device, with its weak type if it had one."""
    import jax
    import jax.numpy as jnp

    saved = state.arrays[name]
    if name in state.meta["keys"]:
        impl = jax.random.key_impl(fresh)
        return jax.device_put(jax.random.wrap_key_data(jnp.array(saved), impl=impl), device)
    if name in state.meta["weak"]:  # only Python numbers make such arrays
        numbers = [jnp.asarray(number) for number in saved.reshape(-1).tolist()]
        return jax.device_put(jnp.stack(numbers).reshape(saved.shape) if saved.ndim else numbers[0], device)
    return jax.device_put(jnp.array(saved), device)
