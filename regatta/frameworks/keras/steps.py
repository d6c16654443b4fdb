"""A training or evaluation step of Keras on each backend: the model's own `train_step`, or a loss_fn and optimizer.

The functions that `StepBuilder.make` returns take batches of NumPy arrays. Their results depend on the batch and on
the variables alone, not on the batches seen before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from regatta.configuration import Configuration
from regatta.errors import UsageError
from regatta.frameworks.base import LossFunction, bind_optional, wrong_loss

StepFunction = Callable[[Any], Any]  # takes a batch, returns its loss or a dict of the metrics so far
_RANDOM_OPERATIONS = ("Random", "Multinomial", "TruncatedNormal", "ParameterizedTruncated", "StatelessIf")


@dataclass
class StepBuilder:
    """What a step needs."""

    model: Any
    optimizer: Any
    loss_fn: LossFunction | None
    config: Configuration

    def make(self, training: bool) -> StepFunction:
        """A function that takes one step on a batch: it trains, or it only evaluates."""
        builders = {"tensorflow": _tensorflow, "torch": _torch, "jax": _jax}
        return builders[keras.backend.backend()](self, training)

    def loss(self, batch: Any, training: bool) -> Any:
        loss_fn = bind_optional(self.loss_fn, self.model, training=training)
        loss = loss_fn(self.model, batch, dict(self.config))
        if not keras.ops.is_tensor(loss) or any(length != 1 for length in loss.shape):
            raise wrong_loss(loss)
        return keras.ops.reshape(loss, ())

    def all_variables(self) -> list[Any]:
        """All variables that a step may change or read."""
        own = self.optimizer.variables if self.optimizer is not None else []
        return [*self.model.variables, *self.model.metrics_variables, *own]


def _tensorflow(steps: StepBuilder, training: bool) -> StepFunction:
    import tensorflow as tf

    model, optimizer = steps.model, steps.optimizer

    def own(batch: Any) -> Any:
        return model.train_step(batch) if training else model.test_step(batch)

    def custom(batch: Any) -> Any:
        if not training:
            return steps.loss(batch, training=False)
        with tf.GradientTape() as tape:
            loss = steps.loss(batch, training=True)
            scaled = optimizer.scale_loss(loss)
        weights = model.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        return loss

    body = tf.autograph.experimental.do_not_convert(own if steps.loss_fn is None else custom)
    if getattr(model, "run_eagerly", False):
        return lambda batch: body(tf.nest.map_structure(tf.convert_to_tensor, batch))
    return _traced(steps, body)


def _traced(steps: StepBuilder, body: StepFunction) -> StepFunction:
    """A graph for batches of any length; a graph made by Keras would depend on the first lengths."""
    import tensorflow as tf

    compile_ = steps.loss_fn is None and bool(getattr(steps.model, "jit_compile", False))
    made: list[Any] = []

    def step(batch: Any) -> Any:
        batch = tf.nest.map_structure(tf.convert_to_tensor, batch)
        if not made:
            signature = tf.nest.map_structure(lambda part: tf.TensorSpec([None, *part.shape[1:]], part.dtype), batch)
            function = tf.function(body, input_signature=[signature], jit_compile=compile_)
            _check_graph(function.get_concrete_function(), steps)
            made.append(function)
        return made[0](batch)

    return step


def _check_graph(graph: Any, steps: StepBuilder) -> None:
    """A graph must not keep state outside the saved variables: that state would differ between workers."""
    known = {id(variable.value) for variable in steps.all_variables()}
    unknown = [variable.name for variable in graph.variables if id(variable) not in known]
    operations = [op for op in graph.graph.get_operations() if op.type.startswith(_RANDOM_OPERATIONS)]
    random = [op.name for op in operations if op.op_def.is_stateful]
    if unknown or random:
        what = f"the variable {unknown[0]}" if unknown else f"the random operation {random[0]}"
        raise UsageError(
            f"A training step uses {what}, which is not part of the model and would be lost at each hop.",
            hint="Make it part of the model: random numbers come from a keras.random.SeedGenerator that is an "
            "attribute of the model or of one of its layers.",
        )


def _torch(steps: StepBuilder, training: bool) -> StepFunction:
    import torch

    model, optimizer = steps.model, steps.optimizer

    def own(batch: Any) -> Any:
        if training:
            return model.train_step(batch)
        with torch.no_grad():
            return model.test_step(batch)

    def custom(batch: Any) -> Any:
        if not training:
            with torch.no_grad():
                return steps.loss(batch, training=False)
        model.zero_grad()
        loss = steps.loss(batch, training=True)
        optimizer.scale_loss(loss).backward()
        weights = model.trainable_weights
        with torch.no_grad():
            optimizer.apply([weight.value.grad for weight in weights], weights)
        return loss.detach()

    body = own if steps.loss_fn is None else custom
    return lambda batch: body(keras.tree.map_structure(keras.ops.convert_to_tensor, batch))


def _jax(steps: StepBuilder, training: bool) -> StepFunction:
    """A pure function takes and returns the variables, which are assigned after each step."""
    import jax

    made: list[Any] = []

    def step(batch: Any) -> Any:
        batch = keras.tree.map_structure(keras.ops.convert_to_tensor, batch)
        if not made:
            if steps.loss_fn is None:
                steps.model._symbolic_build(data_batch=batch)  # before that its metrics have no variables
            made.extend([jax.jit(_pure(steps, training)), _groups(steps, training)])
        compiled, groups = made
        found, values = compiled(tuple([v.value for v in group] for group in groups), batch)
        for group, new in zip(groups, values, strict=True):
            for variable, value in zip(group, new, strict=True):
                variable.assign(value)
        return found

    return step


def _groups(steps: StepBuilder, training: bool) -> list[list[Any]]:
    """The variables that a pure step takes and returns."""
    model = steps.model
    groups = [model.trainable_variables, model.non_trainable_variables]
    groups += [steps.optimizer.variables] if training else []
    return groups + ([model.metrics_variables] if steps.loss_fn is None else [])


def _pure(steps: StepBuilder, training: bool) -> Any:
    if steps.loss_fn is None:
        return steps.model.train_step if training else steps.model.test_step
    return _pure_train(steps) if training else _pure_test(steps)


def _pure_train(steps: StepBuilder) -> Callable[..., Any]:
    import jax

    def pure(state: tuple[Any, ...], batch: Any) -> Any:
        trainable, others, slots = state
        value_and_grad = jax.value_and_grad(functools.partial(_stateless, steps, training=True), has_aux=True)
        (_, (loss, others)), gradients = value_and_grad(trainable, others, batch)
        trainable, slots = steps.optimizer.stateless_apply(slots, gradients, trainable)
        return loss, (trainable, others, slots)

    return pure


def _pure_test(steps: StepBuilder) -> Callable[..., Any]:
    def pure(state: tuple[Any, ...], batch: Any) -> Any:
        trainable, others = state
        _, (loss, others) = _stateless(steps, trainable, others, batch, False)
        return loss, (trainable, others)

    return pure


def _stateless(steps: StepBuilder, trainable: Any, others: Any, batch: Any, training: bool) -> Any:
    """The scaled loss, and with it the loss itself and the new values of the variables without gradients."""
    model = steps.model
    mapping = [*zip(model.trainable_variables, trainable, strict=True)]
    mapping += zip(model.non_trainable_variables, others, strict=True)
    with keras.StatelessScope(state_mapping=mapping) as scope:
        loss = steps.loss(batch, training)
        scaled = steps.optimizer.scale_loss(loss) if training else loss
    changed = [scope.get_current_value(variable) for variable in model.non_trainable_variables]
    return scaled, (loss, [old if new is None else new for old, new in zip(others, changed, strict=True)])
