"""One Ray cluster for all modules that train on one; starting and ending it takes longer than their tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ray_cluster import RayNodes


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[RayNodes]:
    pytest.importorskip("ray")
    with RayNodes(2) as found:
        yield found


@pytest.fixture
def nodes(ray_nodes: RayNodes) -> RayNodes:
    """Two nodes for workers, whatever the tests before have made of them."""
    ray_nodes.resize(2)
    return ray_nodes
