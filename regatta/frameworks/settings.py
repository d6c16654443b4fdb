"""Settings of the whole process, or of its thread, that a model may leave behind and that change what others compute.

A unit puts them back when it ends, so that the next configuration in the same worker finds a clean process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ProcessSetting:
    """A setting with its name for users, and the functions that read it and put it back."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], object]


class KeptSettings:
    """The values that settings had when they were added."""

    def __init__(self, settings: Iterable[ProcessSetting] = ()) -> None:
        self._values: list[tuple[ProcessSetting, Any]] = []
        self.add(settings)

    def add(self, settings: Iterable[ProcessSetting]) -> None:
        """Keep the present values of settings that are not kept yet."""
        known = {setting for setting, _ in self._values}
        self._values += [(setting, setting.get()) for setting in settings if setting not in known]

    def changed(self) -> tuple[str, ...]:
        """The names of the settings that have another value now."""
        return tuple(setting.name for setting, value in self._values if setting.get() != value)

    def restore(self) -> None:
        for setting, value in self._values:  # in their order: one may decide what another one reads
            if setting.get() != value:
                setting.put(value)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A scope with these values; its end brings back those from before it."""
        now = KeptSettings(setting for setting, _ in self._values)
        self.restore()
        try:
            yield
        finally:
            now.restore()


@contextmanager
def keep(settings: Iterable[ProcessSetting]) -> Iterator[KeptSettings]:
    """A scope whose end restores the settings."""
    kept = KeptSettings(settings)
    try:
        yield kept
    finally:
        kept.restore()


@functools.cache
def process_settings() -> tuple[ProcessSetting, ...]:
    """The settings of Python and NumPy, which every framework uses."""
    return (
        ProcessSetting("the working folder", _working_folder, _change_folder),
        ProcessSetting("numpy.seterr", np.geterr, lambda modes: np.seterr(**modes)),
        ProcessSetting("numpy.seterrcall", np.geterrcall, np.seterrcall),
    )


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted
        return None


def _change_folder(folder: str | None) -> None:
    if folder is not None:
        os.chdir(folder)
