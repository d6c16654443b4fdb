"""One module per framework, the same verbs in each: what a unit needs of the tool that trains the model.

    assemble   what model_fn returned -> a trainee, checked
    prepare    arrays as input_fn read them -> the framework's own, on the device
    train      one pass over a partition, batch by batch
    evaluate   the mean loss over a partition, nothing changed
    save/read/restore   the whole state of a trainee to a file and back, without loss
    seeded     a scope in which all random numbers come from one seed

`base.py` writes the contract down, `regatta.testing.frameworks` tests it, `numpy` is the slow and obvious one.
Nothing here knows of workers, partitions on disk or schedules; no framework is imported before it is used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from regatta.errors import UsageError, nearest
from regatta.frameworks.base import LOSS_OR_TRAIN_FN, OPTIONAL_LOSS_ARGUMENTS, Framework, describe

NAMES = ("torch", "keras", "jax", "numpy")
_ASKED = ("keras", "torch", "jax", "numpy")  # on the PyTorch backend, a Keras model is a torch.nn.Module as well

__all__ = [
    "LOSS_OR_TRAIN_FN",
    "NAMES",
    "OPTIONAL_LOSS_ARGUMENTS",
    "Framework",
    "framework_of",
    "keep_settings_in_all",
    "load_framework",
    "loaded_frameworks",
    "may_have_own_loss",
    "seeded_in_all",
]


def load_framework(name: str) -> Framework:
    """The framework of that name."""
    if name not in NAMES:
        raise UsageError(
            f"There is no framework {name!r}; known are {', '.join(NAMES)}.", candidates=nearest(name, NAMES)
        )
    home = "regatta.frameworks.numpy" if name == "numpy" else f"regatta.frameworks.{name}.framework"
    module: Framework = importlib.import_module(home)
    return module


def framework_of(built: object) -> Framework:
    """The framework to which what `model_fn` returned belongs."""
    jax = load_framework("jax")
    if jax.owns(built):
        return jax  # also where a bare pytree is a tuple
    model = built[0] if isinstance(built, tuple) and built else built
    for name in _ASKED:
        framework = load_framework(name)
        if framework.owns(model):
            return framework
    raise UsageError(
        f"model_fn returned {describe(built)}, which belongs to no known framework.",
        hint="Return a torch.nn.Module, (module, optimizer), or (module, optimizer, schedule); a compiled keras.Model, "
        "or (model, optimizer); (parameters, optimizer) for JAX; for the NumPy reference a dict of arrays and its "
        "optimizer.",
    )


def may_have_own_loss(framework: str) -> bool:
    """Whether models of a sweep may bring their own loss, as compiled Keras models do."""
    return framework == "keras" or (framework == "auto" and "keras" in sys.modules)


def loaded_frameworks() -> tuple[str, ...]:
    """The frameworks that this process has imported; NumPy always is."""
    return tuple(name for name in NAMES if name in sys.modules)


@contextmanager
def seeded_in_all(seed: int) -> Iterator[None]:
    """As `seeded` of every framework that is loaded: which one a model belongs to is not known before it is built."""
    with ExitStack() as stack:
        for name in loaded_frameworks():
            stack.enter_context(load_framework(name).seeded(seed))
        yield


@contextmanager
def keep_settings_in_all() -> Iterator[None]:
    """As `keep_settings` of every framework that is loaded."""
    with ExitStack() as stack:
        for name in loaded_frameworks():
            stack.enter_context(load_framework(name).keep_settings())
        yield
