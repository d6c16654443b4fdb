"""The connection to a Ray cluster, found or started, and the resources that it has."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from regatta.cluster import Cluster
from regatta.engine.workers.fork_client import THREAD_LIMITS
from regatta.errors import MissingExtraError, UsageError

# Ray reads these settings from the environment only. The second one is read when Ray is imported. It keeps messages
# of raylets about dead nodes, which are events of the pool anyway, out of the standard output.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": r"\A|\(raylet\)|[Rr]aylet|node id"}
CONNECT_TIMEOUT_S = 10.0


class RaySession:
    """Ray as one run uses it; the session ends Ray only if it has started it."""

    def __init__(self, cluster: Cluster) -> None:
        with _environment(_QUIET):
            try:
                import ray
                import ray.exceptions
            except ImportError:
                raise MissingExtraError("ray", "ray", "Cluster.ray") from None
            self._ray: Any = ray
            self._ours = not self._ray.is_initialized()
            if self._ours:
                self._connect(cluster.address)
        self._needs = cluster.needs()
        self._reserved: list[Any] = []

    def _connect(self, address: str | None) -> None:
        started = {"include_dashboard": False} if address in (None, "local") else {}
        try:
            _check_reachable(address)
            self._ray.init(address=address, log_to_driver=False, logging_level="ERROR", **started)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"There is no Ray cluster at {address or 'this machine'}: {error}",
                hint="Start one with `ray start --head` and give its address, or address=None for one of this machine.",
            ) from error

    def actors(self, kind: type, groups: Mapping[str, int], cluster: Cluster) -> Callable[..., Any]:
        """A class as actors with the resources and threads of a worker; called with further options of Ray."""
        threads = str(cluster.threads or 1)
        limits = dict.fromkeys(THREAD_LIMITS, threads)
        return partial(
            self._ray.remote(concurrency_groups=dict(groups))(kind).options,
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
            resources=dict(cluster.resources or {}),
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": limits},
        )

    def room(self) -> int:
        """The number of workers that the present nodes could hold, if they held nothing else."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(_fits(self._needs, node) for node in nodes)

    def free(self) -> int:
        """The number of workers that there is room for right now."""
        return min(self.room(), _fits(self._needs, self._ray.available_resources()))

    def reserve(self, workers: int) -> Any:
        """Where a number of actors go that should be near each other: to one node, if one has room for all."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._reserved.append(placement_group([self._needs] * workers, strategy="PACK"))
        return PlacementGroupSchedulingStrategy(self._reserved[-1])

    def cores(self) -> dict[str, float]:
        """The number of CPUs of each live node, by its id."""
        return {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"]}

    def store_bytes(self) -> float:
        return float(self._ray.cluster_resources().get("object_store_memory", 0.0))

    def wait(self, references: Sequence[Any], seconds: float) -> None:
        if references:
            self._ray.wait(list(references), num_returns=len(references), timeout=seconds)

    def kill(self, actor: Any) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(actor, no_restart=True)

    def close(self) -> None:
        for place in self._reserved:
            self._ray.util.remove_placement_group(place)
        if self._ours:
            self._ray.shutdown()


def _fits(needs: Mapping[str, float], has: Mapping[str, float]) -> int:
    """How many workers these resources are enough for."""
    return min(int(has.get(name, 0.0) / need + 1e-9) for name, need in needs.items())


def _check_reachable(address: str | None) -> None:
    """Raise OSError if nothing listens at the address; Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """A scope with defaults for environment variables."""
    missing = [name for name in values if name not in os.environ]
    os.environ.update({name: values[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def watch_process(info: Mapping[str, Any]) -> int | None:
    """A file that can be read once a worker's process has ended: Ray reports a death before the process ends."""
    if info["host"] != socket.gethostname() or not hasattr(os, "pidfd_open"):
        return None
    with contextlib.suppress(OSError):  # it has ended already, or runs in a container of the same host name
        return os.pidfd_open(info["pid"])
    return None


def await_end(process: int | None, seconds: float) -> None:
    """Wait for the end of a watched process, and stop watching it."""
    if process is not None:
        select.select([process], [], [], seconds)
        os.close(process)


def how_it_ended(error: BaseException) -> str:
    """Why an actor is gone, in a few words, from Ray's long report."""
    import ray.exceptions

    text = str(error)
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"failed with {text.strip().splitlines()[-1]}"
    if "its node has died" in text:
        return "was lost with its node"
    for line in text.splitlines():
        if "exit detail:" in line:
            detail = line.partition("exit detail:")[2].strip()
            return f"died: {detail.split('. ')[0].rstrip('.')}"
    return f"died: {text.strip().splitlines()[0]}" if text.strip() else "died"
