"""Functions that preprocess data, for the tests of sharing; they need only NumPy, so that processes start fast."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 6


def write_line(log: Path, *words: object) -> None:
    """Append a line in one write, because other processes write at the same time."""
    line = " ".join(map(str, (os.getpid(), *words))) + "\n"
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, line.encode())
    os.close(file)


def logged_lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def noisy(batch: Any, seed: int, log: Path | None = None, sleeps: float = 0.0) -> Any:
    """Adds noise from NumPy's two generators and from Python's."""
    import random

    x, y = batch
    if log is not None:
        write_line(log, seed)
    time.sleep(sleeps)
    noise = np.random.default_rng(seed).normal(size=x.shape) + np.random.normal() + random.random()
    return (x + 0.1 * noise).astype(np.float32), y


class SlowToStart:
    """`noisy`, but it takes a process half a second to unpickle it, like a function with large imports."""

    def __call__(self, batch: Any, seed: int) -> Any:
        return noisy(batch, seed)

    def __reduce__(self) -> Any:
        return _unpickle_slowly, ()


def _unpickle_slowly() -> SlowToStart:
    time.sleep(0.5)
    return SlowToStart()


def read_noted(path: Path, log: Path) -> Any:
    from regatta.data import read_partition

    write_line(log, path.name)
    return tuple(np.array(part) for part in read_partition(path))


def fails_for(batch: Any, seed: int, seeds: Collection[int]) -> Any:
    if seed in seeds:
        raise ValueError("cannot augment")
    return batch


def dies_once(batch: Any, seed: int, mark: Path) -> Any:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return noisy(batch, seed)


def dies(batch: Any, seed: int) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def linear_fn(config: dict[str, Any]) -> Any:
    from regatta.frameworks.numpy import SGD

    return {"w": np.random.normal(size=(WIDTH, 3)), "b": np.zeros(3)}, SGD(config["lr"], momentum=0.9)


def squares(weights: Any, batch: Any, config: dict[str, Any]) -> Any:
    x, y = batch
    error = x @ weights["w"] + weights["b"] - np.eye(3)[y]
    return (error**2).mean(), {"w": x.T @ error / len(x), "b": error.mean(0)}
