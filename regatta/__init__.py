"""Regatta trains many deep-learning models as one job, and keeps every one of them."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regatta import search, sinks
    from regatta.cluster import Cluster
    from regatta.data import Dataset
    from regatta.errors import RegattaError
    from regatta.pack import Pack
    from regatta.repo import Repo
    from regatta.run import Run, open_run
    from regatta.sweep import Sweep, launch

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "Dataset",
    "Pack",
    "RegattaError",
    "Repo",
    "Run",
    "Sweep",
    "launch",
    "open_run",
    "search",
    "sinks",
]

_HOME = {
    "Cluster": "regatta.cluster",
    "Dataset": "regatta.data",
    "Pack": "regatta.pack.pack",
    "RegattaError": "regatta.errors",
    "Repo": "regatta.repo",
    "Run": "regatta.run",
    "Sweep": "regatta.sweep",
    "launch": "regatta.sweep",
    "open_run": "regatta.run",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used: `import regatta` alone loads nothing heavy."""
    if name in ("Cluster", "Dataset") and "torch" in sys.modules and _is_program(sys._getframe(1).f_globals):
        # It will soon launch a sweep. The process that forks workers can import PyTorch while data are prepared.
        importlib.import_module("regatta.engine.workers.start_process").expect_workers(b"torch")
    if name in ("search", "sinks"):
        return importlib.import_module(f"regatta.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'regatta' has no attribute {name!r}")


def _is_program(names: dict[str, Any]) -> bool:
    """Whether these are the global names of the program itself, not of a library, a test or a worker."""
    return names is vars(sys.modules["__main__"])


def __dir__() -> list[str]:
    return sorted(__all__)
