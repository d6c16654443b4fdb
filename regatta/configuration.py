"""Configurations: plain dicts of JSON scalars, and their ids."""

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
