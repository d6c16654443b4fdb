"""Workers in this process keep the contract of a pool."""

from __future__ import annotations

from regatta.cluster import Cluster
from regatta.engine.messages import WorkerSetup
from regatta.engine.workers.base import WorkerPool
from regatta.engine.workers.inline import InlinePool
from regatta.testing.workers import WorkerPoolContract


class TestInlinePool(WorkerPoolContract):
    @classmethod
    def open_pool(cls, setup: WorkerSetup, workers: int) -> WorkerPool:
        return InlinePool(Cluster.inline(workers).sized(3), setup)
