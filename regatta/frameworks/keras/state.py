"""The state of a Keras trainee: every variable of the model and of its optimizer, by its place in the model.

Keras numbers its default names of layers differently in each process and after each build (`dense_5` for `dense`). So
default names are renumbered in the order of the model. Seed generators are variables, and belong to the state.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regatta.frameworks.arrays import ArrayState, check_same_variables, unique_names, write_arrays

if TYPE_CHECKING:
    from regatta.frameworks.keras.framework import KerasTrainee

NAME = "keras"
_NUMBERED = re.compile(r"(.*?)_\d+")


def save(trainee: KerasTrainee, path: Path) -> None:
    variables = {part: _variables(trainee, part) for part in ("model", "optimizer")}
    found = {name: _as_array(variable) for named in variables.values() for name, variable in named.items()}
    write_arrays(path, NAME, found, {part: list(named) for part, named in variables.items()})


def restore(trainee: KerasTrainee, state: ArrayState) -> None:
    for part in ("model", "optimizer"):
        if part == "optimizer" and trainee.optimizer is None:
            continue  # a model that is only evaluated
        variables = _variables(trainee, part)
        check_same_variables(part, state.meta["tree"].get(part), list(variables))
        for name, variable in variables.items():
            variable.assign(state.arrays[name])


def unsaved_values(trainee: KerasTrainee) -> dict[str, Any]:
    """Numbers and strings among the attributes of layers, because Keras saves only variables."""
    found = {}
    for number, layer in enumerate(trainee.model._flatten_layers()):
        for name, value in vars(layer).items():
            if not name.startswith("_") and name != "name" and isinstance(value, bool | int | float | str):
                found[f"layers.{number}.{name}"] = value
    return found


def _variables(trainee: KerasTrainee, part: str) -> dict[str, Any]:
    if part == "optimizer":
        variables = [] if trainee.optimizer is None else trainee.optimizer.variables
        return {f"optimizer/{number:03d}": variable for number, variable in enumerate(variables)}
    variables = trainee.model.variables
    below = [variable.path.removeprefix(f"{trainee.model.name}/") for variable in variables]
    places = _places(below, _default_names(trainee.model))
    return dict(zip(unique_names(f"model/{place}" for place in places), variables, strict=True))


def _default_names(model: Any) -> set[str]:
    """The default names of Keras for the classes of the model's layers, without numbers."""
    classes = {type(layer).__name__ for layer in model._flatten_layers()}
    return {_snake(name) for name in classes} | {"seed_generator"}


def _snake(name: str) -> str:
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def _places(paths: list[str], default_names: set[str]) -> list[str]:
    """Paths of variables, with numbers that depend only on their order."""
    renamed: dict[str, str] = {}
    used: Counter[str] = Counter()

    def place(path: str) -> str:
        if path not in renamed:
            above, _, name = path.rpartition("/")
            above = place(above) if above else ""
            match = _NUMBERED.fullmatch(name)
            base = match[1] if match and match[1] in default_names else name
            if base in default_names:
                used[f"{above}/{base}"] += 1
                count = used[f"{above}/{base}"] - 1
                name = f"{base}_{count}" if count else base
            renamed[path] = f"{above}/{name}" if above else name
        return renamed[path]

    return [place(path) for path in paths]


def _as_array(variable: Any) -> NDArray[Any]:
    value = variable.value
    if hasattr(value, "detach"):  # a PyTorch tensor; NumPy lacks bfloat16
        value = value.detach().cpu()
        if variable.dtype == "bfloat16":
            import ml_dtypes

            return np.asarray(value.view(sys.modules["torch"].int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)
