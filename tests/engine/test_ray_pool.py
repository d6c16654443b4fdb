"""Actors of a real Ray cluster of several nodes keep the contract of a pool, and outlive nothing and nobody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from regatta.cluster import Cluster
from regatta.engine.events import Outfit
from regatta.engine.workers import open_pool
from regatta.engine.workers.base import WorkerPool
from regatta.testing.workers import WorkerPoolContract

pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def nodes() -> Iterator[None]:
    from rays import RayNodes

    with RayNodes(2) as found:
        yield found


class TestRayPool(WorkerPoolContract):
    @classmethod
    def open_pool(cls, outfit: Outfit, workers: int) -> WorkerPool:
        return open_pool(Cluster.ray(workers, cpus=0.4).sized(3), outfit)
