"""Archive plans on a synthetic repository of 54 versions x 10 snapshots x 16 matrices, as in the ModelHub paper (V-B).

    python benchmarks/bench_archive_plans.py [--quick]

A modeler fine-tunes a network of VGG-16's shape again and again: each version starts from an earlier one, changes its
last layer, and keeps 10 snapshots. Deltas lead to the snapshot before and to the parent's last, in both directions.
Two sets of costs:

    measured    parallel edges: two encodings without a base and three deltas, with sizes and speeds as this store's
                encodings have them
    paper       one edge for each pair, as the paper has it: byte planes by zlib, XOR; what is stored is what is read

Budgets are factors of the cheapest recreation, the same for all snapshots; in the rows "by reads", of the mean over
reads, and better models get more of them. Storage is that of the plan divided by that of the minimum spanning tree;
"published" are the algorithms as the paper prints them, without what we add. Every plan is checked against its budgets;
the time is that of the slowest of the five, in one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from report import Bar, report

from regatta.store.archive.budgets import by_access, by_factor
from regatta.store.archive.planner import plan
from regatta.store.archive.storage_graph import Floats, StorageEdge, StorageGraph

CONVOLUTIONS = (1728, 36864, 73728, 147456, 294912, 589824, 589824, 1179648, *[2359296] * 5)
DENSE = (25088 * 768, 768 * 2048, 2048 * 100)  # 36 million weights in all, as many as the paper's repository has
FACTORS = (1.1, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
QUICK = (1.5, 3.0, 10.0)
BY_READS = 3.0
VARIANTS = (("last", True), ("pas-mt", False), ("pas-pt", False), ("pas-mt", True), ("pas-pt", True))
COLUMNS = ["costs", "scheme", "budget", "LAST", "MT published", "PT published", "PAS-MT", "PAS-PT", "SPT", "CPU s"]
Scheme = Literal["independent", "parallel"]


@dataclass(frozen=True)
class Costs:
    """Of each way the share of the raw bytes and raw bytes a second; of a delta, the share of its fastest encoding."""

    name: str
    whole: tuple[tuple[float, float], ...]
    delta: tuple[tuple[float, float], ...]


MEASURED = Costs("measured", ((0.8315, 1.35e9), (0.8265, 2.0e9)), ((1.0, 1.5e9), (0.97, 4.0e8), (0.985, 2.8e8)))
PAPER = Costs("paper", ((0.851, 5.6e8),), ((1.04, 4.7e8),))


@dataclass(frozen=True)
class Repository:
    graph: StorageGraph
    reads: dict[str, float]


def repository(costs: Costs, versions: int, snapshots: int, matrices: int, seed: int = 1) -> Repository:
    """Each version is tuned from one of the eight before it; deltas get smaller as training settles."""
    random = np.random.default_rng(seed)
    sizes = [4.0 * count for count in (*CONVOLUTIONS, *DENSE)[-matrices:]]
    edges: list[StorageEdge] = []
    groups: dict[str, list[tuple[int, int, int]]] = {}
    reads: dict[str, float] = {}
    for version in range(versions):
        parent = int(random.integers(max(0, version - 8), version)) if version else None
        quality = random.random()
        for step in range(snapshots):
            name = f"v{version}s{step}"
            groups[name] = [(version, step, matrix) for matrix in range(matrices)]
            reads[name] = float(np.exp(4 * quality)) * (10.0 if step == snapshots - 1 else 1.0)
            for matrix, size in enumerate(sizes):
                new = matrix == matrices - 1 and parent is not None  # the last layer is new
                edges.extend(_edges(random, costs, (version, step, matrix), snapshots, None if new else parent, size))
    return Repository(StorageGraph(edges, groups), reads)


def _edges(
    random: np.random.Generator,
    costs: Costs,
    node: tuple[int, int, int],
    snapshots: int,
    parent: int | None,
    size: float,
) -> Iterator[StorageEdge]:
    version, step, matrix = node
    spread = 1 + 0.01 * random.standard_normal()
    for share, speed in costs.whole:
        yield StorageEdge(None, node, size * share * spread, size / speed)
    bases: list[tuple[tuple[int, int, int], float]] = []
    if step:
        bases.append(((version, step - 1, matrix), 0.56 + 0.16 * (1 - step / snapshots) + 0.06 * random.random()))
    if parent is not None and step in (0, snapshots - 1):
        bases.append(((parent, snapshots - 1, matrix), (0.60 if step == 0 else 0.68) + 0.15 * random.random()))
    for base, delta in bases:
        for share, speed in costs.delta:
            yield StorageEdge(base, node, size * delta * share, size / speed)
            yield StorageEdge(node, base, size * delta * share, size / speed)


def main() -> None:
    options = _arguments()
    size = (12, 5, 8) if options.quick else (54, 10, 16)
    factors = QUICK if options.quick else FACTORS
    rows = [row for costs in (MEASURED, PAPER) for row in _rows(repository(costs, *size), costs.name, factors)]
    worst = {name: max(row[COLUMNS.index(name)] / row[3] for row in rows) for name in COLUMNS[4:8]}
    report(
        "archive_plans",
        COLUMNS,
        rows,
        bars=[
            Bar("PAS-MT / LAST, storage at the worst budget", worst["PAS-MT"], 1.0),
            Bar("PAS-PT / LAST, storage at the worst budget", worst["PAS-PT"], 1.0),
            Bar("CPU seconds for the slowest plan", max(row[-1] for row in rows), 60.0),
        ],
        notes={
            "versions, snapshots, matrices": size,
            "MT published / LAST, worst": worst["MT published"],
            "PT published / LAST, worst": worst["PT published"],
        },
    )


def _rows(made: Repository, costs: str, factors: tuple[float, ...]) -> Iterator[list[object]]:
    graph = made.graph
    least = plan(graph, "mst").storage
    schemes: tuple[Scheme, ...] = ("independent", "parallel")
    for scheme in schemes:
        quickest = plan(graph, "spt", scheme).storage / least
        for factor in factors:
            for how, budgets in (
                ("", by_factor(graph, scheme, factor)),
                (" by reads", by_access(graph, scheme, factor, made.reads)),
            ):
                if how and factor != BY_READS:
                    continue
                found, slowest = _compare(graph, scheme, budgets)
                print(f"{costs} {scheme} {factor}{how}: {slowest:.1f} s", flush=True)
                yield [costs, scheme, f"{factor:g}x{how}", *[one / least for one in found], quickest, slowest]


def _compare(graph: StorageGraph, scheme: Scheme, budgets: Floats) -> tuple[list[float], float]:
    """The storage of each algorithm's plan, and the time of the slowest."""
    storage, seconds = [], []
    for algorithm, refined in VARIANTS:
        start = time.process_time()
        found = plan(graph, algorithm, scheme, budgets, refined=refined)
        seconds.append(time.process_time() - start)
        if len(found.order) != len(graph) or not (found.recreation(scheme) <= budgets).all():
            raise SystemExit(f"The plan by {algorithm} is none, or exceeds a budget.")
        storage.append(found.storage)
    return storage, max(seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller repository and fewer budgets")
    return parser.parse_args()


if __name__ == "__main__":
    main()
