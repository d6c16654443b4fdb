"""Where a sweep runs: numbers decided from the machine, or refused."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from regatta.cluster import Cluster
from regatta.errors import UsageError


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return 8


@pytest.mark.parametrize(
    ("cluster", "partitions", "workers", "threads"),
    [
        (Cluster.local(), 4, 4, 2),
        (Cluster.local(), 100, 8, 1),
        (Cluster.local(), 1, 1, 8),
        (Cluster.local(workers=3), 4, 3, 2),
        (Cluster.local(workers=16), 4, 16, 1),
        (Cluster.local(workers=2, threads=1), 4, 2, 1),
        (Cluster.inline(), 4, 1, None),
        (Cluster.inline(3), 2, 3, None),
        (Cluster.ray(3), 2, 3, 1),
        (Cluster.ray(3, cpus=4), 2, 3, 4),
        (Cluster.ray(2, cpus=0.5, threads=2), 2, 2, 2),
    ],
)
def test_numbers_are_decided_by_cores_and_partitions(
    cores: int, cluster: Cluster, partitions: int, workers: int, threads: int | None
) -> None:
    sized = cluster.sized(partitions)
    assert (sized.kind, sized.workers, sized.threads) == (cluster.kind, workers, threads)
    assert sized.sized(partitions) == sized
    assert len(sized.names()) == len(set(sized.names())) == workers


def test_a_worker_per_gpu(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 2,3")
    assert Cluster.local().sized(8).workers == 3
    assert Cluster.local().sized(2).workers == 2
    assert Cluster.local(device="cpu").sized(8).workers == 8
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert Cluster.local().sized(8).workers == 8


def test_a_description_makes_the_same_cluster_again(cores: int) -> None:
    ray = Cluster.ray(2, address="auto", resources={"fast": 1}, cpus=2, gpus=0.5, storage="s3://bucket/runs")
    for cluster in (Cluster.local(2, threads=1, device="cpu"), Cluster.inline(3), Cluster.local().sized(4), ray):
        assert Cluster(**cluster.describe()) == cluster


@pytest.mark.parametrize("name", ["workers", "threads"])
@pytest.mark.parametrize("value", [0, -2, 1.5, True, "4"])
def test_wrong_numbers_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value!r}; it must be a whole number from 1"):
        Cluster.local(**{name: value})


def test_ray_decides_how_many_workers_there_is_room_for() -> None:
    assert Cluster.ray().sized(4).workers is None


def test_resources_of_a_worker_on_a_node() -> None:
    assert Cluster.ray().needs() == {"CPU": 1}
    assert Cluster.ray(cpus=0, gpus=0.5, resources={"fast": 2}).needs() == {"GPU": 0.5, "fast": 2}
    with pytest.raises(UsageError, match="would fit any number of times"):
        Cluster.ray(cpus=0)


@pytest.mark.parametrize(
    "options", [{"cpus": -1}, {"gpus": "1"}, {"resources": {"fast": True}}, {"cpus": float("nan")}]
)
def test_wrong_resources_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="it must be a number per worker"):
        Cluster.ray(**options)


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("gpu", "Did you mean cuda?"),
        ("gpu:0", "Did you mean cuda?"),
        ("cud", "Did you mean cuda"),
        ("cuda:x", '"cuda:1"'),
        (0, '"cpu"'),
    ],
)
def test_devices_that_do_not_exist_are_refused(device: Any, text: str) -> None:
    with pytest.raises(UsageError, match="which is not a device") as caught:
        Cluster.local(device=device)
    assert text in str(caught.value)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for cluster in (Cluster.local(device="cuda"), Cluster.inline(device="cuda:1")):
        with pytest.raises(UsageError, match="no GPU for CUDA"):
            cluster.check_available()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    Cluster.local(device="cuda:1").check_available()
    with pytest.raises(UsageError, match="there are only 2 GPUs"):
        Cluster.local(device="cuda:2").check_available()
    Cluster.ray(device="cuda:7").check_available()  # on other machines
    Cluster.local().check_available()
