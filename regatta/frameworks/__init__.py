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

from regatta.errors import UsageError, nearest
from regatta.frameworks.base import Framework, described

NAMES = ("torch", "numpy")

__all__ = ["NAMES", "Framework", "framework_of", "load_framework"]


def load_framework(name: str) -> Framework:
    """The framework of that name."""
    if name not in NAMES:
        raise UsageError(
            f"There is no framework {name!r}; known are {', '.join(NAMES)}.", candidates=nearest(name, NAMES)
        )
    module: Framework = importlib.import_module(f"regatta.frameworks.{name}")
    return module


def framework_of(built: object) -> Framework:
    """The framework to which what `model_fn` returned belongs."""
    model = built[0] if isinstance(built, tuple) and built else built
    for name in NAMES:
        framework = load_framework(name)
        if framework.owns(model):
            return framework
    raise UsageError(
        f"model_fn returned {described(built)}, which belongs to no known framework.",
        hint="Return a torch.nn.Module, or (module, optimizer), or (module, optimizer, schedule); "
        "for the NumPy reference a dict of arrays and its optimizer.",
    )
