"""Small storage graphs, and all of their plans."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from regatta.errors import CorruptError
from regatta.store.archive.storage_graph import StorageEdge, StorageGraph, StoragePlan

costs = st.integers(0, 20).map(lambda cost: cost / 4)


@st.composite
def graphs(draw: st.DrawFn, most: int = 5) -> StorageGraph:
    """Every matrix has an edge from the null node; deltas in any direction, also parallel, some of them free."""
    count = draw(st.integers(1, most))
    edges = [StorageEdge(None, n, draw(costs), draw(costs), "whole") for n in range(count)]
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] != pair[1])
    if count > 1:
        for source, target in draw(st.lists(pairs, max_size=2 * count)):
            edges.append(StorageEdge(source, target, draw(costs), draw(costs), "delta"))
    members = st.lists(st.integers(0, count - 1), min_size=1, max_size=count)
    return StorageGraph(edges, {f"s{i}": m for i, m in enumerate(draw(st.lists(members, min_size=1, max_size=3)))})


def all_plans(graph: StorageGraph) -> list[StoragePlan]:
    """Every spanning arborescence, by trying all combinations."""
    found = []
    for chosen in itertools.product(*graph.into[1:]):
        plan = StoragePlan(graph, (-1, *chosen))
        try:
            _ = plan.order
        except CorruptError:
            continue
        found.append(plan)
    return found


def chains(versions: int, snapshots: int, matrices: int) -> StorageGraph:
    """Versions of a model, each tuned from the previous: deltas between neighbours, two encodings, both directions."""
    edges: list[StorageEdge] = []
    for version, step, matrix in itertools.product(range(versions), range(snapshots), range(matrices)):
        size = 4.0**matrix
        node = (version, step, matrix)
        edges.append(StorageEdge(None, node, size, size, "whole"))
        before = (version, step - 1, matrix) if step else (version - 1, snapshots - 1, matrix)
        if before[0] < 0:
            continue
        share = 0.5 + (7 * version + 3 * step + 5 * matrix) % 11 / 40
        for source, target in ((before, node), (node, before)):
            edges.append(StorageEdge(source, target, size * share, size * 1.5, "quick"))
            edges.append(StorageEdge(source, target, size * share * 0.9, size * 4, "dense"))
    groups = {
        f"v{version}s{step}": [(version, step, matrix) for matrix in range(matrices)]
        for version, step in itertools.product(range(versions), range(snapshots))
    }
    return StorageGraph(edges, groups)
