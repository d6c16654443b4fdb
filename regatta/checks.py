"""Checks of arguments: what the user passed is compared with what is needed, before anything starts."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping

from regatta.configuration import Scalar
from regatta.errors import UsageError, nearest


def is_whole(value: object, least: int = 1) -> bool:
    """Whether a value is a whole number from `least`; True and False are not numbers."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object) -> bool:
    """Whether a value is a finite number; True and False are not numbers."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of floats
        return False


def check_argument(name: str, value: object, valid: bool, wanted: str) -> None:
    if not valid:
        raise UsageError(f"{name} is {value!r}; it must be {wanted}.")


def check_signature(name: str, function: object, arguments: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Raise a UsageError unless the function can be called with these arguments; `optional` ones may be missing."""
    if not callable(function):
        raise UsageError(f"{name} is {function!r}, which cannot be called.")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # builtins may have no signature
    try:
        signature.bind(*arguments, **{extra: None for extra in optional if extra in signature.parameters})
    except TypeError as error:
        raise UsageError(f"{name} is called as {name}({', '.join(arguments)}), but {error}.") from error


def check_solver_import(rule: str) -> None:
    """TensorFlow and OR-Tools contain the same C++ library. If TensorFlow loads its copy first, the solver crashes."""
    if rule == "cpsat" and "tensorflow" in sys.modules and "ortools.sat.python.cp_model" not in sys.modules:
        raise UsageError(
            "The hop rule 'cpsat' cannot work in a process that has imported TensorFlow before OR-Tools.",
            hint="Put `from ortools.sat.python import cp_model` before the import of keras, or take rule='auto'.",
        )


def check_batch_size(config: Mapping[str, Scalar]) -> None:
    if "batch_size" not in config:
        near = nearest("batch_size", config, 1)
        raise UsageError(
            f"The configuration {dict(config)} has no batch_size, which is needed to make batches.",
            hint=f"Rename {near[0]!r} to 'batch_size'." if near else "Add it to the search, such as batch_size=[32].",
        )
    check_argument("batch_size", config["batch_size"], is_whole(config["batch_size"]), "a whole number from 1")
