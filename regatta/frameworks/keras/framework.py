"""Keras 3, on any of its backends: compiled models, or models and optimizers for a loss_fn.

def model_fn(config):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    model.compile(keras.optimizers.Adam(config["lr"]), loss=..., metrics=["accuracy"])
    return model

A compiled model needs neither loss_fn nor train_fn. The seed generators of layers such as Dropout are variables of the
model and travel with it, as in a plain loop of Keras. The seed of a unit serves everything else that draws random
numbers.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from regatta.configuration import Configuration
from regatta.errors import MissingExtraError, UsageError
from regatta.frameworks import arrays, load_framework
from regatta.frameworks.arrays import mean_loss, read, read_only, rows, take  # noqa: F401 (verbs)
from regatta.frameworks.base import Indices, LossFunction, arguments, describe
from regatta.frameworks.keras.state import NAME, restore, save, unsaved_values  # noqa: F401 (verbs)
from regatta.frameworks.settings import ProcessSetting

if TYPE_CHECKING:
    import keras

    from regatta.frameworks.keras.steps import StepFunction

COMPILES = True
_TRAINING_ONLY = ("rate", "dropout", "recurrent_dropout", "stddev")  # attributes of layers that add noise in training
_SCOPES = ("autocast_scope", "distribution", "flash_attention", "stateless_scope", "symbolic_scope", "torch_device")


@dataclass
class KerasTrainee:
    """A model, its optimizer, and the steps compiled for them."""

    model: keras.Model
    optimizer: Any = None
    device: str = "cpu"
    steps: dict[tuple[bool, LossFunction | None], StepFunction] = field(default_factory=dict)


def owns(model: object) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and hasattr(keras, "Model") and isinstance(model, keras.Model)


def assemble(built: Any, device: str) -> KerasTrainee:
    parts = built if isinstance(built, tuple) else (built,)
    if not 1 <= len(parts) <= 2:
        raise UsageError(f"model_fn returned {len(parts)} things; it returns a model, or a model and an optimizer.")
    model, optimizer = (*parts, None)[:2]
    _check_parts(model, optimizer)
    if optimizer is None and model.compiled:
        optimizer = model.optimizer
    if optimizer is not None:
        optimizer.build(model.trainable_variables)
    return KerasTrainee(model, optimizer, device)


def _check_parts(model: Any, optimizer: object) -> None:
    keras = _import_keras()
    if not isinstance(model, keras.Model):
        raise UsageError(f"model_fn returned {describe(model)}, where a keras.Model belongs.")
    if not model.built:
        raise UsageError(
            f"model_fn returned the model {model.name!r}, which has no weights before its first batch.",
            hint="Begin the model with keras.Input(shape), or call model.build((None, ...)) before you return it.",
        )
    if optimizer is not None and not isinstance(optimizer, keras.Optimizer):
        raise UsageError(f"model_fn returned (model, {describe(optimizer)}); the second is a keras.Optimizer.")


def _import_keras() -> Any:
    try:
        import keras
    except ImportError as error:
        raise MissingExtraError("keras", "keras", "framework='keras'") from error
    return keras


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python and NumPy, which Keras draws from, and the generators of Keras and of its backend."""
    _import_keras()
    from keras.src.backend.common import global_state

    names = ("global_seed_generator", "global_random_seed")
    before = {name: global_state.get_global_attribute(name) for name in names}
    with ExitStack() as stack:
        stack.enter_context(arrays.seeded(seed))
        if "torch" in sys.modules:
            stack.enter_context(load_framework("torch").seeded(seed))
        if "tensorflow" in sys.modules:
            stack.enter_context(_seeded_tensorflow(seed))
        global_state.set_global_attribute(names[0], None)  # created again, from Python's random numbers
        global_state.set_global_attribute(names[1], seed % 2**32)
        try:
            yield
        finally:
            for name, value in before.items():
                global_state.set_global_attribute(name, value)


@contextmanager
def _seeded_tensorflow(seed: int) -> Iterator[None]:
    import tensorflow as tf
    from tensorflow.python.eager import context

    inner = context.context()
    before = inner._seed, getattr(inner, "_rng", None)
    tf.random.set_seed(seed % 2**63)
    try:
        yield
    finally:
        inner._seed, inner._rng = before


@functools.cache
def settings() -> tuple[ProcessSetting, ...]:
    keras = _import_keras()
    from keras.src.backend.common import global_state

    config, backend = keras.config, keras.backend.backend()
    own = (
        ProcessSetting("keras.config.set_floatx", config.floatx, config.set_floatx),
        ProcessSetting("keras.config.set_epsilon", config.epsilon, config.set_epsilon),
        ProcessSetting("keras.config.set_image_data_format", config.image_data_format, config.set_image_data_format),
        ProcessSetting("keras.config.set_dtype_policy", config.dtype_policy, config.set_dtype_policy),
    )
    scopes = (
        ProcessSetting(
            f"{name} of Keras",
            functools.partial(global_state.get_global_attribute, name),
            functools.partial(global_state.set_global_attribute, name),
        )
        for name in _SCOPES
    )
    return (*own, *scopes, *(_tensorflow_settings() if backend == "tensorflow" else load_framework(backend).settings()))


def _tensorflow_settings() -> tuple[ProcessSetting, ...]:
    import tensorflow as tf

    config = tf.config
    return (
        ProcessSetting("tf.config.run_functions_eagerly", config.functions_run_eagerly, config.run_functions_eagerly),
        ProcessSetting(
            "tf.config.experimental.enable_tensor_float_32_execution",
            config.experimental.tensor_float_32_execution_enabled,
            config.experimental.enable_tensor_float_32_execution,
        ),
        ProcessSetting("tf.config.optimizer.set_jit", config.optimizer.get_jit, config.optimizer.set_jit),
    )


def evaluating(trainee: KerasTrainee) -> nullcontext[None]:
    return nullcontext()  # Keras has no mode: each call gets `training`


def prepare(data: Any, device: str) -> Any:
    return read_only(data)  # every backend takes NumPy arrays


def check_unmodified(data: Any) -> nullcontext[None]:
    return nullcontext()  # the arrays are read-only


def train(
    trainee: KerasTrainee, data: Any, batches: Iterable[Indices], loss_fn: LossFunction | None, config: Configuration
) -> dict[str, float]:
    if trainee.optimizer is None:
        raise UsageError(
            "Training needs an optimizer, and model_fn returned none.",
            hint="Return (model, optimizer), or compile the model with one.",
        )
    return _pass(trainee, data, batches, loss_fn, config, training=True)


def train_fn_arguments(trainee: KerasTrainee) -> tuple[Any, Any, None]:
    return trainee.model, trainee.optimizer, None


def schedule_position(trainee: KerasTrainee) -> None:
    return None  # schedules belong to the optimizer, and count its updates


def end_epoch(trainee: KerasTrainee) -> None:
    """Schedules belong to the optimizer, and count steps."""


def evaluate(
    trainee: KerasTrainee, data: Any, batches: Iterable[Indices], loss_fn: LossFunction | None, config: Configuration
) -> dict[str, float]:
    return _pass(trainee, data, batches, loss_fn, config, training=False)


def _pass(
    trainee: KerasTrainee,
    data: Any,
    batches: Iterable[Indices],
    loss_fn: LossFunction | None,
    config: Configuration,
    training: bool,
) -> dict[str, float]:
    with _on(trainee.device):
        step = _step(trainee, loss_fn, config, training)
        if loss_fn is None:
            return _own_metrics(trainee.model, step, data, batches)
        return mean_loss([(step(take(data, indices)), len(indices)) for indices in batches])


def _own_metrics(model: Any, step: StepFunction, data: Any, batches: Iterable[Indices]) -> dict[str, float]:
    """The metrics of a compiled model: means over the rows since the metrics were reset."""
    model.reset_metrics()
    logs: Any = {}
    for indices in batches:
        batch = take(data, indices)
        logs = step(batch if isinstance(batch, tuple) else (batch,))
    return {name: float(value) for name, value in logs.items()}


def _step(trainee: KerasTrainee, loss_fn: LossFunction | None, config: Configuration, training: bool) -> StepFunction:
    from regatta.frameworks.keras.steps import StepBuilder

    key = (training, loss_fn)
    if key not in trainee.steps:
        _check_loss_fn(trainee.model, loss_fn)
        trainee.steps[key] = StepBuilder(trainee.model, trainee.optimizer, loss_fn, config).make(training)
    return trainee.steps[key]


def _check_loss_fn(model: Any, loss_fn: LossFunction | None) -> None:
    """Refuse a loss_fn that would train or evaluate in the wrong mode unnoticed."""
    if loss_fn is None:
        if not model.compiled:
            raise UsageError(
                "model_fn returned a model that is not compiled, and there is neither loss_fn nor train_fn.",
                hint="Call model.compile(optimizer, loss) in model_fn, or give a loss_fn(model, batch, config).",
            )
    elif "training" not in arguments(loss_fn):
        names = [layer.name for layer in model._flatten_layers() if _has_modes(layer)]
        if names:
            raise UsageError(
                f"The layer {names[0]} behaves differently in training, and loss_fn does not say if it is training.",
                hint="Write loss_fn(model, batch, config, training) and call model(x, training=training) in it.",
            )


def _has_modes(layer: Any) -> bool:
    import keras

    noisy = any(isinstance(vars(layer).get(name), float) and vars(layer)[name] > 0 for name in _TRAINING_ONLY)
    return noisy or isinstance(layer, keras.layers.BatchNormalization)


def _on(device: str) -> AbstractContextManager[Any]:
    """The scope of Keras for a device; for the CPU, or without GPUs, an empty one, as in a plain loop."""
    import keras

    kind, _, index = device.partition(":")
    if kind == "cpu" or not keras.distribution.list_devices("gpu"):
        return nullcontext()
    scope: AbstractContextManager[Any] = keras.device(f"gpu:{index or 0}")
    return scope
