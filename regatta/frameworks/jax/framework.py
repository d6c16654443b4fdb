"""JAX: parameters in any pytree, optimizers with the `init` and `update` of Optax.

def model_fn(config):
    w = jax.random.normal(regatta.frameworks.jax.next_key(), (64, 10))
    return {"w": w}, optax.adam(config["lr"])

def loss_fn(params, batch, config, key=None):       # `key` is None in evaluation
    ...

A step is compiled once for each trainee. A loss_fn with an argument `key` gets `fold_in(unit_key(seed), step)`, where
`seed` is the seed of the unit and steps count from 0.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from regatta.configuration import Configuration
from regatta.errors import MissingExtraError, UsageError
from regatta.frameworks import arrays
from regatta.frameworks.arrays import mean_loss, read, rows  # noqa: F401 (verbs)
from regatta.frameworks.base import Indices, LossFunction, arguments, bind_optional, describe, wrong_loss
from regatta.frameworks.jax.state import NAME, Model, is_array, restore, save, unsaved_values  # noqa: F401 (verbs)
from regatta.frameworks.settings import ProcessSetting

if TYPE_CHECKING:
    import jax

COMPILES = True
StepFactory = Callable[..., Callable[..., Any]]
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_debug_nans",
    "jax_disable_jit",
    "jax_default_device",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)


@dataclass
class JaxTrainee:
    """Parameters with their optimizer, and the steps compiled for them."""

    whole: Model
    optimizer: Any = None
    bare: bool = True  # model_fn returned only parameters, and loss_fn gets only parameters
    device: Any = None
    steps: dict[tuple[StepFactory, LossFunction | None], Callable[..., Any]] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        return self.as_users_model(self.whole.params, self.whole.state)

    def as_users_model(self, params: Any, state: Any) -> Any:
        """The model in the form that the user's functions get."""
        return params if self.bare else Model(params, state)


def owns(model: object) -> bool:
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "tree_util"):  # it is being imported
        return False
    if isinstance(model, Model):
        return True
    # Beside an optimizer, NumPy arrays are parameters too.
    if isinstance(model, tuple) and len(model) == 2 and is_optimizer(model[1]):
        leaves = jax.tree_util.tree_leaves(model[0])
        return bool(leaves) and all(map(is_array, leaves))
    leaves = jax.tree_util.tree_leaves(model)
    return any(isinstance(leaf, jax.Array) for leaf in leaves) and all(map(is_array, leaves))


def is_optimizer(optimizer: object) -> bool:
    """Whether an object has the two functions of Optax's optimizers."""
    return callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))


def assemble(built: Any, device: str) -> JaxTrainee:
    jax = _import_jax()
    pair = isinstance(built, tuple) and len(built) == 2 and not hasattr(built, "_fields") and not owns(built[1])
    model, optimizer = built if pair else (built, None)
    _check_parts(built, model, optimizer)
    whole = model if isinstance(model, Model) else Model(model)
    place = _place(device)
    placed = functools.partial(jax.tree_util.tree_map, lambda leaf: _on(place, leaf))
    params, state, opt_state = placed(whole.params), placed(whole.state), whole.opt_state
    if opt_state is None and optimizer is not None:
        opt_state = placed(optimizer.init(params))
    return JaxTrainee(Model(params, state, opt_state), optimizer, not isinstance(model, Model), place)


def _import_jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise MissingExtraError("jax", "jax", "framework='jax'") from error
    return jax


def _check_parts(built: object, model: object, optimizer: object) -> None:
    leaves = sys.modules["jax"].tree_util.tree_leaves(model.params if isinstance(model, Model) else model)
    wrong = [leaf for leaf in leaves if not is_array(leaf)]
    if not leaves or wrong:
        what = f"; among its leaves is {describe(wrong[0])}" if wrong and not owns(model) and len(leaves) > 1 else ""
        raise UsageError(
            f"model_fn returned {describe(built)}, where parameters belong: a pytree of arrays{what}.",
            hint="Return (parameters, optimizer); functions and settings are not parameters and stay outside.",
        )
    if optimizer is not None and not is_optimizer(optimizer):
        raise UsageError(
            f"model_fn returned (parameters, {describe(optimizer)}); the second is an optimizer.",
            hint="An optimizer has Optax's init(parameters) and update(gradients, state, parameters).",
        )


def _place(device: str) -> Any:
    """The device of JAX; without GPUs it is the CPU."""
    jax = _import_jax()
    kind, _, index = device.partition(":")
    if kind != "cpu" and jax.default_backend() != "cpu":
        return jax.devices()[int(index or 0)]
    return jax.devices("cpu")[0]


def _on(place: Any, leaf: Any) -> jax.Array:
    import jax
    import jax.numpy as jnp

    if place.platform == "cpu" and jax.default_backend() == "cpu":
        return jnp.asarray(leaf)
    placed: jax.Array = jax.device_put(jnp.asarray(leaf), place)
    return placed


@dataclass
class _Keys:
    seed: int = 0
    drawn: int = 0


_keys: ContextVar[_Keys] = ContextVar("source of keys", default=_Keys())  # noqa: B039 (meant to be shared)


def unit_key(seed: int) -> jax.Array:
    """The key of a unit; `jax.random.key` alone would drop the bits of the seed above 32."""
    import jax

    return jax.random.fold_in(jax.random.key(seed % 2**32), seed >> 32)


def next_key() -> jax.Array:
    """The next key of the present seed, for model_fn, train_fn and eval_fn."""
    import jax

    keys = _keys.get()
    keys.drawn += 1
    return jax.random.fold_in(unit_key(keys.seed), keys.drawn - 1)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    token = _keys.set(_Keys(seed))
    try:
        with arrays.seeded(seed):
            yield
    finally:
        _keys.reset(token)


@functools.cache
def settings() -> tuple[ProcessSetting, ...]:
    jax = _import_jax()
    holders = jax.config._value_holders
    return tuple(
        ProcessSetting(name, functools.partial(_read, holders[name]), functools.partial(_put, holders[name]))
        for name in _SETTINGS
        if name in holders
    )


def _read(holder: Any) -> tuple[Any, Any]:
    """The value of a setting in the process, and in this thread: its context managers set the latter."""
    return holder.get_global(), holder.get_local()


def _put(holder: Any, before: tuple[Any, Any]) -> None:
    everywhere, here = before
    if holder.get_global() != everywhere:
        holder._set(everywhere)
    if holder.get_local() != here:
        holder.set_local(here)
        if holder._update_thread_local_hook:
            unset = sys.modules["jax._src.config"].config_ext.unset
            holder._update_thread_local_hook(None if here is unset else here)


def evaluating(trainee: JaxTrainee) -> nullcontext[None]:
    return nullcontext()  # JAX has no mode: loss_fn gets `training`


def prepare(data: Any, device: str) -> Any:
    import jax.numpy as jnp

    place = _place(device)

    def placed(part: Any) -> Any:
        numbers = isinstance(part, np.ndarray) and part.dtype.kind in "biufc"
        return _on(place, jnp.array(part)) if numbers else part

    return arrays.map_leaves(placed, data)


def check_unmodified(data: Any) -> nullcontext[None]:
    return nullcontext()  # JAX arrays are immutable


def _take(data: Any, indices: Indices) -> Any:
    """A batch; one compiled call takes the rows of all JAX arrays."""
    import jax

    leaves, structure = jax.tree_util.tree_flatten(data)
    ours = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    taken = dict(zip(ours, _taker()([leaves[i] for i in ours], indices), strict=True))
    batch = [taken[i] if i in taken else leaf[indices] for i, leaf in enumerate(leaves)]
    return jax.tree_util.tree_unflatten(structure, batch)


@functools.cache
def _taker() -> Callable[..., Any]:
    import jax

    return jax.jit(lambda parts, indices: [part[indices] for part in parts])


def train(
    trainee: JaxTrainee, data: Any, batches: Iterable[Indices], loss_fn: LossFunction | None, config: Configuration
) -> dict[str, float]:
    if trainee.optimizer is None:
        raise UsageError("loss_fn needs an optimizer, and model_fn returned none.", hint="Return (params, optimizer).")
    step = _compiled(_train_step, trainee, loss_fn, config)
    keys, whole = _keys.get(), trainee.whole
    wants_key = loss_fn is not None and not {"key", "rng"}.isdisjoint(arguments(loss_fn))
    key = unit_key(keys.seed) if wants_key else None
    losses: list[tuple[Any, int]] = []
    for indices in batches:
        batch = _take(data, indices)
        whole.params, whole.state, whole.opt_state, loss = step(
            whole.params, whole.state, whole.opt_state, batch, key, np.uint32(keys.drawn)
        )
        keys.drawn += 1
        losses.append((loss, len(indices)))
    return mean_loss(losses)


def train_fn_arguments(trainee: JaxTrainee) -> tuple[Model, Any, None]:
    """JAX arrays are immutable: a train_fn gets a `Model`, and assigns its `params` and `opt_state`."""
    return trainee.whole, trainee.optimizer, None


def schedule_position(trainee: JaxTrainee) -> None:
    return None  # schedules belong to the optimizer, and count its updates


def end_epoch(trainee: JaxTrainee) -> None:
    """Schedules belong to the optimizer, and count steps."""


def evaluate(
    trainee: JaxTrainee, data: Any, batches: Iterable[Indices], loss_fn: LossFunction | None, config: Configuration
) -> dict[str, float]:
    step = _compiled(_eval_step, trainee, loss_fn, config)
    whole = trainee.whole
    return mean_loss([(step(whole.params, whole.state, _take(data, indices)), len(indices)) for indices in batches])


def _compiled(
    make: StepFactory, trainee: JaxTrainee, loss_fn: LossFunction | None, config: Configuration
) -> Callable[..., Any]:
    import jax

    if (make, loss_fn) not in trainee.steps:
        trainee.steps[make, loss_fn] = jax.jit(make(trainee, loss_fn, config))
    return trainee.steps[make, loss_fn]


def _train_step(
    trainee: JaxTrainee, loss_fn: LossFunction | None, config: Configuration
) -> Callable[..., tuple[Any, Any, Any, Any]]:
    import jax
    import jax.numpy as jnp

    def loss_of(params: Any, state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        offered = {"training": True, "key": key, "rng": key}
        return _loss(trainee, bind_optional(loss_fn, trainee.model, **offered), (params, state), batch, config)

    def applied(parameter: Any, update: Any) -> Any:
        return parameter if update is None else jnp.asarray(parameter + update).astype(jnp.asarray(parameter).dtype)

    def step(params: Any, state: Any, opt_state: Any, batch: Any, key: Any, number: Any) -> tuple[Any, Any, Any, Any]:
        key = None if key is None else jax.random.fold_in(key, number)
        (loss, state), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, state, batch, key)
        updates, opt_state = trainee.optimizer.update(gradients, opt_state, params)
        params = jax.tree_util.tree_map(applied, params, updates, is_leaf=lambda leaf: leaf is None)
        return params, state, opt_state, loss

    return step


def _eval_step(trainee: JaxTrainee, loss_fn: LossFunction | None, config: Configuration) -> Callable[..., Any]:
    def step(params: Any, state: Any, batch: Any) -> Any:
        offered = {"training": False, "key": None, "rng": None}
        return _loss(trainee, bind_optional(loss_fn, trainee.model, **offered), (params, state), batch, config)[0]

    return step


def _loss(
    trainee: JaxTrainee, loss_fn: LossFunction, parts: tuple[Any, Any], batch: Any, config: Configuration
) -> tuple[Any, Any]:
    """The loss, and the state after it."""
    import jax.numpy as jnp

    params, state = parts
    found = loss_fn(trainee.as_users_model(params, state), batch, dict(config))
    if state is not None:
        if not isinstance(found, tuple) or len(found) != 2:
            raise UsageError(f"loss_fn returned {describe(found)}; for a Model with a state it is (loss, new state).")
        found, state = found
    if not is_array(found) or jnp.size(found) != 1:
        raise wrong_loss(found, "it returns one number")
    return jnp.reshape(found, ()), state
