"""The seeds of a run: derived from the run's seed and from what is trained, never from the worker or the time.

That makes a sweep replayable.
"""

from __future__ import annotations

import json

from blake3 import blake3

from regatta.configuration import Configuration, canonical


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
