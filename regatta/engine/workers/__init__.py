"""Where units run. A pool takes tasks for named workers and gives back events; it decides nothing.

base.py      the protocol that every pool keeps (regatta.testing.workers tests it)
trainer.py   what a worker does with a task: the same code in every pool
inline.py    in this process, one task after another: the reference
process.py   a process per worker; states hop through mapped files
groups.py    workers of another pool in groups: a group is one worker to whoever gives it tasks
seating.py   who is in a group with whom
group_member.py what a worker does otherwise in a group than alone
ray.py       an actor per worker on a Ray cluster (ray_actor.py is the actor); states hop as object references
ray_maker.py actors that prepare data for all workers of a Ray cluster; ray_blocks.py is what they leave in its store
"""

from __future__ import annotations

from collections.abc import Callable

from regatta.cluster import Cluster
from regatta.engine.messages import Recipe, Task, WorkerSetup
from regatta.engine.workers.base import WorkerPool
from regatta.paths import MEETINGS


def open_pool(cluster: Cluster, setup: WorkerSetup, widths: Callable[[Task], int] | None = None) -> WorkerPool:
    """The workers of a cluster, not yet started; `widths` says of a task how many of a group do it, if not all."""
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
    return GroupPool(pool, width, setup.logs / MEETINGS, widths, patient=grows)


def _open_workers(cluster: Cluster, setup: WorkerSetup) -> WorkerPool:
    if cluster.kind == "ray":
        from regatta.engine.workers.ray.pool import RayPool

        return RayPool(cluster, setup)
    from regatta.engine.workers.process import ProcessPool

    return ProcessPool(cluster, setup)
