"""Configurations: plain dicts of JSON scalars, their ids and their seeds.

All seeds of a run are derived here, from the run's seed and from what is trained, never from the worker or the time.
That makes a sweep replayable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TypeAlias

from blake3 import blake3

from regatta.errors import UsageError
from regatta.format import brief

Scalar: TypeAlias = str | int | float | bool | None
Configuration: TypeAlias = Mapping[str, Scalar]


def canonical(config: Configuration) -> str:
    """The canonical text of a configuration: sorted names, no spaces, floats as Python prints them."""
    return json.dumps(dict(config), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def config_id(config: Configuration) -> str:
    """The id of a configuration: ten hexadecimal digits, the same in every process and every run."""
    return blake3(canonical(config).encode(errors="surrogatepass")).hexdigest(length=5)


def check_configuration(config: object) -> dict[str, Scalar]:
    """The configuration as a plain dict of Python scalars; a UsageError names an entry that is not one."""
    if not isinstance(config, Mapping):
        raise UsageError(f"A configuration is a dict of plain values, not {brief(config)}.")
    for name in config:
        if not isinstance(name, str) or not name:
            raise UsageError(f"A configuration's names are non-empty strings, not {brief(name)}.")
    return {name: _check_value(name, value) for name, value in config.items()}


def _check_value(name: str, value: object) -> Scalar:
    item = getattr(value, "item", None)  # NumPy scalars become Python scalars
    if callable(item) and getattr(value, "ndim", None) == 0:
        value = item()
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"The value of {name!r} is {value}, which is not a finite number.")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise UsageError(
        f"The value of {name!r} is {brief(value)}; configurations hold strings, numbers, booleans and None.",
        hint="Put a name into the configuration and turn it into the object inside model_fn.",
    )


def derive_seed(run_seed: int, *what: object) -> int:
    """A 63-bit seed for `what`, practically independent of every other seed of the run."""
    text = json.dumps([run_seed, *what], sort_keys=True, separators=(",", ":"))
    return int.from_bytes(blake3(text.encode()).digest(length=8), "little") >> 1


def initial_seed(run_seed: int, config: Configuration) -> int:
    """The seed for the initial weights of a configuration, used when `model_fn` is called."""
    return derive_seed(run_seed, "init", canonical(config))


def unit_seed(run_seed: int, config: Configuration, epoch: int, partition: int) -> int:
    """The seed of one unit: of its batch order and of all random numbers drawn while it trains."""
    return derive_seed(run_seed, "unit", canonical(config), epoch, partition)
