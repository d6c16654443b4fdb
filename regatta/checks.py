"""Checks of arguments: what the user passed is compared with what is needed, before anything starts."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ParamSpec, TypeVar

from regatta.configuration import Scalar
from regatta.errors import UsageError, nearest
from regatta.format import brief

P = ParamSpec("P")
R = TypeVar("R")


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


def check_argument(name: str, value: object, valid: bool, wanted: str, hint: str | None = None) -> None:
    if not valid:
        raise UsageError(f"{name} is {brief(value)}; it must be {wanted}.", hint=hint)


def check_names(function: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise a UsageError if a function does not have an argument of one of these names."""
    for name in names:
        if name not in known:
            hint = f"Its arguments are {', '.join(known)}."
            raise UsageError(f"{function} has no argument {name!r}.", candidates=nearest(name, known), hint=hint)


def refuses_unknown_names(function: Callable[P, R]) -> Callable[P, R]:
    """A function, or an `__init__`, that suggests the nearest names for an argument that it does not have."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*arguments: P.args, **named: P.kwargs) -> R:
        check_names(function.__qualname__.partition(".")[0], named, known)
        return function(*arguments, **named)

    return checked


def check_signature(name: str, function: object, arguments: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Raise a UsageError unless the function can be called with these arguments; `optional` ones may be missing."""
    if not callable(function):
        raise UsageError(f"{name} is {brief(function)}, which cannot be called.")
    if name == "model_fn" and hasattr(function, "state_dict") and not isinstance(function, type):
        raise UsageError(
            f"model_fn is a {type(function).__name__}; it is a function that makes one.",
            hint="Write `def model_fn(config): return model, optimizer`.",
        )
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # builtins may have no signature
    try:
        signature.bind(*arguments, **{extra: None for extra in optional if extra in signature.parameters})
    except TypeError as error:
        parameters = [
            parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()
        ]
        yours = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
        raise UsageError(f"Regatta calls {name}({', '.join(arguments)}); yours takes {yours}.") from error


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
