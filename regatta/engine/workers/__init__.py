"""Where units run. A pool takes tasks for named workers and returns events; it decides nothing.

base.py            the protocol of a pool (regatta.testing.workers tests it)
inline.py          workers in this process, one task after another: the reference
process.py         a process for each worker; states hop through mapped files
worker_main.py     what such a process runs
start_process.py   starts processes, by forking where that is possible
fork_client.py     the controller's side of a process from which workers are forked
fork_server.py     that process
groups.py          groups of workers of another pool; to the controller, a group is one worker
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
    width, recipe = cluster.group or 1, setup.recipe_or_pickle
    if width > 1 and isinstance(recipe, Recipe):  # otherwise the workers find out
        from regatta.engine.workers.training.group_member import check_groupable

        check_groupable(recipe, width, recipe.framework)
    if cluster.kind == "ray":
        from regatta.engine.workers.ray.pool import RayPool

        pool: WorkerPool = RayPool(cluster, setup)
    else:
        from regatta.engine.workers.process import ProcessPool

        pool = ProcessPool(cluster, setup)
    if width == 1:
        return pool
    from regatta.engine.workers.groups import GroupPool

    return GroupPool(pool, width, setup.logs / MEETINGS, widths, wait_for_workers=cluster.kind == "ray")
