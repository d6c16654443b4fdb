"""The frameworks that train models; a module for each, with the same functions.

    assemble   makes a trainee, a model with all that trains it, of what model_fn returned
    prepare    turns arrays into the framework's own, on the device
    train      makes one pass over a partition, batch by batch
    evaluate   computes the mean loss over a partition, and changes nothing
    save/read/restore   write the whole state of a trainee to a file and bring it back without loss
    seeded     a scope in which all random numbers come from one seed

`base.py` is the contract, `regatta.testing.frameworks` tests it, and `numpy.py` is the simple reference. `arrays.py`,
`settings.py`, `state_tree.py` and `threads.py` serve several frameworks; `model_outlines.py` reads the networks of the
models of a sweep.
Nothing here knows of workers, partitions on disk or schedules. No framework is imported before it is used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from regatta.errors import UsageError, nearest
from regatta.frameworks.base import (
    LOSS_OR_TRAIN_FN,
    OPTIONAL_LOSS_ARGUMENTS,
    OPTIONAL_TRAIN_ARGUMENTS,
    Framework,
    describe,
)
from regatta.frameworks.settings import KeptSettings, ProcessSetting, keep, process_settings

NAMES = ("torch", "keras", "jax", "numpy")
_LOOKUP_ORDER = ("keras", "torch", "jax", "numpy")  # with PyTorch as backend, a Keras model is a torch.nn.Module too

__all__ = [
    "LOSS_OR_TRAIN_FN",
    "NAMES",
    "OPTIONAL_LOSS_ARGUMENTS",
    "OPTIONAL_TRAIN_ARGUMENTS",
    "Framework",
    "framework_of",
    "keep_settings",
    "load_framework",
    "loaded_frameworks",
    "may_have_own_loss",
    "seeded_in_all",
    "settings_of",
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
    """The framework of an object that `model_fn` returned."""
    jax = load_framework("jax")
    if jax.owns(built):
        return jax  # a bare pytree may be a tuple
    model = built[0] if isinstance(built, tuple) and built else built
    for name in _LOOKUP_ORDER:
        framework = load_framework(name)
        if framework.owns(model):
            return framework
    raise UsageError(
        f"model_fn returned {describe(built)}, which does not belong to a known framework.",
        hint="Return a torch.nn.Module, (module, optimizer), or (module, optimizer, schedule); a compiled keras.Model, "
        "or (model, optimizer); (parameters, optimizer) for JAX; for the NumPy reference a dict of arrays and its "
        "optimizer.",
    )


def may_have_own_loss(framework: str) -> bool:
    """Whether models of a sweep may have their own loss, as compiled Keras models do."""
    return framework == "keras" or (framework == "auto" and "keras" in sys.modules)


def loaded_frameworks() -> tuple[str, ...]:
    """The frameworks that this process has imported; NumPy is always among them."""
    return tuple(name for name in NAMES if name in sys.modules)


@contextmanager
def seeded_in_all(seed: int) -> Iterator[None]:
    """`seeded` of every loaded framework, because the framework of a model is not known before it is built."""
    with ExitStack() as stack:
        for name in loaded_frameworks():
            stack.enter_context(load_framework(name).seeded(seed))
        yield


def settings_of(framework: str = "auto") -> list[ProcessSetting]:
    """The settings of the process, and those of a framework, or of every loaded one."""
    names = loaded_frameworks() if framework == "auto" else (framework,)
    return [*process_settings(), *(setting for name in names for setting in load_framework(name).settings())]


def keep_settings() -> AbstractContextManager[KeptSettings]:
    """A scope whose end restores the settings of the process and of every loaded framework."""
    return keep(settings_of())
