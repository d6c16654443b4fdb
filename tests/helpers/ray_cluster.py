"""A Ray cluster of several nodes on this machine, for tests that add and remove them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from fsspec import AbstractFileSystem
from fsspec.registry import register_implementation
from processes import soon

from regatta.testing.workers import loss_fn, model_fn

HEALTH_CHECKS = {  # Ray notices a lost node within two seconds, not half a minute
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
OBJECT_STORE_BYTES = 200_000_000
MAX_START_ATTEMPTS = 3


class RayNodes:
    """A head without room for workers, and nodes of one CPU each; this process is connected to it."""

    def __init__(self, nodes: int) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray

        self._cluster = _start_head()
        for _ in range(nodes):
            self.add()
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")

    def add(self) -> None:
        """Only the main thread may do so."""
        self._cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES, wait=True)

    def count(self) -> int:
        """The number of nodes with room for workers."""
        return len(self._cluster.list_all_nodes()) - 1

    def resize(self, nodes: int) -> None:
        """Have this number of nodes with room for workers."""
        workers = [node for node in self._cluster.list_all_nodes() if not node.is_head()]
        for node in workers[nodes:]:
            self.remove(node.node_id)
        for _ in range(nodes - len(workers)):
            self.add()
        assert soon(lambda: _alive() == nodes + 1)

    def remove(self, node_id: str) -> None:
        """Kill all processes of a node at once."""
        node = next(n for n in self._cluster.list_all_nodes() if n.node_id == node_id)
        self._cluster.remove_node(node, allow_graceful=False)

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(self, *problem: object) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def _start_head() -> Any:
    """A cluster with a head; on a busy machine a start may take longer than the half minute that Ray allows."""
    from ray.cluster_utils import Cluster

    head = {
        "num_cpus": 0,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_system_config": {**HEALTH_CHECKS, "prestart_worker_first_driver": False},
    }
    for _ in range(MAX_START_ATTEMPTS - 1):
        try:
            return Cluster(initialize_head=True, head_node_args=head)
        except Exception as error:  # Ray has no exception class of its own for it
            if "timed out during startup" not in str(error):
                raise
    return Cluster(initialize_head=True, head_node_args=head)


def _alive() -> int:
    import ray

    return sum(node["Alive"] for node in ray.nodes())


class GatedFiles(AbstractFileSystem):  # type: ignore[misc]
    """A remote storage: gated:///folder is /folder. Below a file `shut` it waits, below a file `full` it refuses."""

    protocol = "gated"
    root_marker = "/"

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        os.makedirs(path, exist_ok=exist_ok)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        above = Path(rpath).parents
        assert soon(lambda: not any((folder / "shut").exists() for folder in above))
        if any((folder / "full").exists() for folder in above):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), rpath)
        shutil.copyfile(lpath, rpath)

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        shutil.copyfile(rpath, lpath)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        os.replace(path1, path2)

    def rm_file(self, path: str) -> None:
        os.unlink(path)


register_implementation("gated", GatedFiles, clobber=True)


def wide_fn(config: Mapping[str, Any]) -> Any:
    """A model of a megabyte; a process that unpickles it also imports the storage above."""
    weights, optimizer = model_fn(config)
    return {**weights, "more": np.zeros(125_000)}, optimizer


def wide_loss(weights: Any, batch: Any, config: Mapping[str, Any]) -> Any:
    loss, gradients = loss_fn(weights, batch, config)
    return loss, {**gradients, "more": np.zeros(125_000)}
