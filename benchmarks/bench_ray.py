"""Workers on two Ray nodes of this machine, and beside them worker processes doing the same.

    REGATTA_BENCH_DATA=folder/with/mnist.npz python benchmarks/bench_ray.py    (Ray: pip install '.[ray]')

- hop: a state of 40 MB goes to and fro between two workers, as in bench_hop.py: from the end of the optimizer's last
  step on one to the first call of the loss function on the other, the receiver waiting, building the model not counted.
  On Ray the state is made in a file, becomes an object of the node's store, is sent to the other node's store, and
  is written to a file there. Worker processes need one of the four copies. The last two are made while the model
  is built. A row gives Ray's own share: an array of the same size, returned by one actor and fetched by another.
- real run: the sweep of bench_real_run.py, sixteen models of very different cost on two workers with units of about
  half a second; makespan over the least time that the units of its own trace allow.

The nodes are separate processes with object stores of their own, joined by the loopback device of one machine, whose
cores all of them share.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import bench_hop
import bench_real_run
import numpy as np
from report import Bar, print_table, report

import regatta

LIMIT_RATIO, LIMIT_MS = 1.10, 150.0
STORE = 2_000_000_000
KINDS = {
    "Ray, two nodes": regatta.Cluster.ray(2, device="cpu"),
    "processes": regatta.Cluster.local(workers=2, threads=1, device="cpu"),
}


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory() as folder, _nodes():
        bare = _bare_hops(options.hops)
        hops = _hops(Path(folder), options.hops)
        runs = _runs(Path(folder), options.repeats, options.rows)
    names = [field.name for field in fields(bench_hop.Hop)]
    hop_rows = [[kind, len(found), *bench_hop._medians(found)] for kind, found in hops.items()]
    hop_rows.append(["Ray alone, an array", len(bare), statistics.median(bare), *["-"] * (len(names) - 1)])
    print_table(["ms for 40 MB (medians)", "hops", *names], hop_rows)
    print()
    columns = [field.name.replace("_", " ") for field in fields(bench_real_run.Result)]
    report(
        "ray",
        ["real run (medians)", *columns],
        [[kind, *_medians(found)] for kind, found in runs.items()],
        bars=[
            Bar("Ray: makespan / bound", _median_ratio(runs["Ray, two nodes"]), LIMIT_RATIO),
            Bar("Ray: hop of 40 MB between two nodes, ms", hop_rows[0][2], LIMIT_MS),
        ],
        peers=("ray",),
        notes={
            "hop_medians_ms": [dict(zip(["workers", "hops", *names], row, strict=True)) for row in hop_rows],
            "hops_ms": {kind: [hop.total for hop in found] for kind, found in hops.items()},
            "processes_ratio": _median_ratio(runs["processes"]),
            "repeats": options.repeats,
            "rows": options.rows,
        },
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hops", type=int, default=20, help="the least number to measure of each kind")
    parser.add_argument("--repeats", type=int, default=3, help="real runs of each kind")
    parser.add_argument("--rows", type=int, default=50_000, help="of the data set, a fifth of them for evaluation")
    return parser.parse_args()


@contextmanager
def _nodes() -> Iterator[None]:
    """A head that has no room for workers, and two nodes with room for one each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=STORE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def _hops(folder: Path, wanted: int) -> dict[str, list[bench_hop.Hop]]:
    data = bench_hop._dataset(folder)
    return {kind: _measured(data, cluster, wanted, folder / kind.split(",")[0]) for kind, cluster in KINDS.items()}


def _measured(data: regatta.Dataset, cluster: regatta.Cluster, wanted: int, folder: Path) -> list[bench_hop.Hop]:
    """The hops of one model that two workers pass to and fro."""
    folder.mkdir()
    log = str(folder / "moments")
    sweep = regatta.Sweep(
        data,
        regatta.search.configs([{"batch_size": bench_hop.BATCH, "lr": 1e-4}]),
        functools.partial(bench_hop.model_fn, log=log),
        loss_fn=functools.partial(bench_hop.loss_fn, log=log),
        epochs=2 + wanted,
        metric="train_loss",
        framework="torch",
        cluster=cluster,
        repo=folder,
    )
    record = sweep.execute(folder)
    moments = bench_hop._moments(Path(log))
    pairs = bench_hop._between_workers(record)
    assert len(pairs) >= wanted, f"{len(pairs)} hops between workers, {wanted} wanted"
    return [bench_hop._hop(record, before, after, moments) for before, after in pairs]


def _bare_hops(wanted: int) -> list[float]:
    """Milliseconds from the making of an array on one node until another has it."""
    import ray

    @ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
    class Node:
        def make(self) -> tuple[float, Any]:
            made = np.ones(bench_hop.MEGABYTES * 1_000_000, np.uint8)
            return time.time(), made

        def take(self, reference: list[Any]) -> float:
            ray.get(reference[0])
            return time.time()

    nodes = [Node.remote() for _ in range(2)]
    found = []
    for turn in range(wanted):
        start, made = nodes[turn % 2].make.options(num_returns=2).remote()
        start = ray.get(start)
        found.append(1e3 * (ray.get(nodes[1 - turn % 2].take.remote([made])) - start))
    for node in nodes:
        ray.kill(node)
    return found


def _runs(folder: Path, repeats: int, rows: int) -> dict[str, list[bench_real_run.Result]]:
    data = bench_real_run._dataset(folder / "real", rows)
    found: dict[str, list[bench_real_run.Result]] = {kind: [] for kind in KINDS}
    for repeat in range(repeats):
        for kind, cluster in KINDS.items():
            run = regatta.launch(
                data,
                regatta.search.grid(**bench_real_run.SPACE),
                bench_real_run.model_fn,
                loss_fn=bench_real_run.loss_fn,
                epochs=2,
                seed=repeat,
                framework="torch",
                cluster=cluster,
                repo=folder / "real",
                progress=False,
            )
            assert run.record.status == "done"
            found[kind].append(bench_real_run._judge(run.record))
    return found


def _medians(found: list[bench_real_run.Result]) -> list[float]:
    return [statistics.median(getattr(result, field.name) for result in found) for field in fields(found[0])]


def _median_ratio(found: list[bench_real_run.Result]) -> float:
    return statistics.median(result.ratio for result in found)


if __name__ == "__main__":
    main()
