"""What a controller is given: one object for all arguments of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regatta.cluster import Cluster
from regatta.data import Dataset
from regatta.engine.planning.packer import Orders
from regatta.engine.planning.planner import Planner
from regatta.engine.profiling.cache import ProfileCache
from regatta.engine.workers.base import WorkerPool
from regatta.journal.run_record import Listener
from regatta.search.base import Goal, Search


@dataclass(frozen=True)
class RunSettings:
    """What to train, with which workers, and where."""

    folder: Path
    header: Callable[[], Mapping[str, Any]]  # the fields of the journal's first record; not called for a resumed run
    dataset: Dataset
    search: Search
    goal: Goal
    pool: WorkerPool
    planner: Planner
    cluster: Cluster
    rule: str = "auto"
    orders: Orders = lambda config, epochs: None
    unit_limit_s: float | None = None
    profiles: ProfileCache | None = None
    changed_code: Sequence[str] = ()  # since the last session of a resumed run
    listeners: Iterable[Listener] = ()
