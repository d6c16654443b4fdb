"""Where units run. A pool takes tasks for named workers and returns events; it decides nothing.

base.py            the protocol of a pool (regatta.testing.workers tests it)
inline.py          workers in this process, one task after another: the reference
process.py         a process for each worker; states hop through mapped files
worker_main.py     what such a process runs
start_process.py   starts processes, by forking where that is possible
fork_client.py     the controller's side of a process from which workers are forked
fork_server.py     that process
groups.py          groups of workers of another pool; to the controller, a group is one worker
form_groups.py     which workers form a group
joining.py         a worker that joins a run by itself
training/          what happens inside a unit, the same in every pool
ray/               an actor for each worker on a Ray cluster
"""

from __future__ import annotations

from collections.abc import Callable

from regatta.cluster import Cluster
from regatta.engine.messages import Recipe, Task, WorkerSetup
from regatta.engine.workers.base import WorkerPool
from regatta.paths import MEETINGS


def open_pool(cluster: Cluster, setup: WorkerSetup, widths: Callable[[Task], int] | None = None) -> WorkerPool:
    """The workers of a cluster, not started yet; `widths` gives the number of members that run a task, if not all."""
    if cluster.kind == "inline":
        from regatta.engine.workers.inline import InlinePool

        return InlinePool(cluster, setup)
    width = cluster.group or 1
    if width == 1:
        return _open_workers(cluster, setup)
    from regatta.engine.workers.groups import GroupPool
    from regatta.engine.workers.training.group_member import check_groupable

    if isinstance(setup.recipe_or_pickle, Recipe):  # otherwise the workers find out
        check_groupable(setup.recipe_or_pickle, width, setup.recipe_or_pickle.framework)
    pool, grows = _open_workers(cluster, setup), cluster.kind == "ray"
    return GroupPool(pool, width, setup.logs / MEETINGS, widths, wait_for_workers=grows)


def _open_workers(cluster: Cluster, setup: WorkerSetup) -> WorkerPool:
    if cluster.kind == "ray":
        from regatta.engine.workers.ray.pool import RayPool

        return RayPool(cluster, setup)
    from regatta.engine.workers.process import ProcessPool

    return ProcessPool(cluster, setup)
