"""The cache of profiles: what it finds again, and what it does not trust."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from recipes import loss_fn, model_fn, small_data

from regatta import Cluster, Dataset
from regatta.code_identity import describe_code
from regatta.configuration import Scalar, config_id
from regatta.engine.messages import Event, ModelProfile, Recipe, TaskDone, WorkerReady, WorkerSetup
from regatta.engine.profiling import cache as cache_module
from regatta.engine.profiling.cache import CachedPackRate, CachedProfile, ProfileCache, device_names, profile_key
from regatta.engine.profiling.models import ProfilingHooks, ProfilingRequest, cached_models, profile_models, to_fields
from regatta.engine.profiling.packs import cached_pack_rates, profile_packs
from regatta.engine.workers import open_pool
from regatta.errors import UsageError
from regatta.journal.run_record import RunRecord
from regatta.plan.strategy.form_packs import PackRate
from regatta.search.base import Goal

ONE = Goal("loss", "min", 1, 0)


def result(seconds: float = 0.01, build: str = "b", **more: Any) -> ModelProfile:
    return ModelProfile(seconds, 0.001, 9, 5, 0.05, 100, ("train_loss", "loss"), build=build, **more)


def known(hidden: int, lr: float, seconds: float = 0.01, build: str | None = None) -> CachedProfile:
    return CachedProfile({"hidden": hidden, "lr": lr}, result(seconds, f"h{hidden}" if build is None else build), 0.5)


def cached(folder: Path, *configs: CachedProfile, **packs: CachedPackRate) -> ProfileCache:
    ProfileCache.open(folder, "key").add(configs, packs)
    return ProfileCache.open(folder, "key")


def test_what_was_measured_is_found_again(tmp_path: Path) -> None:
    whole = result(peak_bytes=7, eval_fixed_seconds=0.02, forgotten=("x",), prepare_seconds_per_row=0.1)
    rate = CachedPackRate(PackRate(4, 2.5, "fused"), ("c1", "c2", "c3", "c4"))
    found = cached(tmp_path, CachedProfile({"hidden": 8, "name": "a", "on": True}, whole, 1.5), b=rate)
    assert found.find({"on": True, "name": "a", "hidden": 8}) == whole
    assert found.spent([config_id({"hidden": 8, "name": "a", "on": True}), "other"]) == 1.5
    assert found.packs["b"].rate == PackRate(4, 2.5, "fused")
    assert ProfileCache.open(tmp_path, "other").find({"hidden": 8, "name": "a", "on": True}) is None


def test_a_similar_configuration_of_the_same_build_is_found(tmp_path: Path) -> None:
    found = cached(tmp_path, known(8, 0.1), known(8, 0.01, 0.011), known(16, 0.1, 0.02), known(16, 0.01, 0.021))
    assert found.find({"hidden": 8, "lr": 0.15}) == result(0.011, "h8")
    assert found.find({"hidden": 16, "lr": 0.005}) == result(0.021, "h16")
    assert found.find({"hidden": 32, "lr": 0.1}) is None  # no such build is known
    assert found.find({"hidden": 8, "lr": 0.05, "depth": 3}) is None
    assert found.find({"hidden": 8, "lr": 40.0}) is None  # far from all known values
    assert found.find({"hidden": 8, "lr": "high"}) is None


@pytest.mark.parametrize(
    "configs",
    [
        [known(8, 0.1)],  # whether lr matters is not known
        [known(8, 0.1), known(8, 0.01, 0.05)],  # it does
        [known(8, 0.1, build=""), known(8, 0.01, build="")],  # opaque models may be anything
        [known(8, 0.1, build="cuda"), known(8, 0.01, build="cuda")],  # on a GPU, a build says nothing about structure
    ],
)
def test_values_that_may_matter_are_measured(tmp_path: Path, configs: list[CachedProfile]) -> None:
    assert cached(tmp_path, *configs).find({"hidden": 8, "lr": 0.5}) is None
    assert cached(tmp_path, *configs).find({"hidden": 8, "lr": 0.1}) is not None


def test_rates_hold_for_as_many_members_and_on_a_gpu_for_the_same_members(tmp_path: Path) -> None:
    found = cached(
        tmp_path, b=CachedPackRate(PackRate(4, 2.5), ("a", "c")), cuda=CachedPackRate(PackRate(2, 1.5), ("a", "c"))
    )
    assert found.rate("b", ["x", "y"]) == PackRate(4, 2.5)
    assert found.rate("b", ["x"] * 8) is None
    assert found.rate("cuda", ["c", "a"]) == PackRate(2, 1.5)
    assert found.rate("cuda", ["a", "x"]) is None
    assert found.rate("cuda", []) is None


def test_ratios_and_start_times_are_found_again(tmp_path: Path) -> None:
    cached(tmp_path, known(8, 0.1)).add(ratios={"h8": 0.25}, start_seconds=0.5)
    cached(tmp_path, known(8, 0.01)).add(ratios={"h16": 0.0})
    found = ProfileCache.open(tmp_path, "key")
    assert (found.ratios, found.start_seconds, len(found.configs)) == ({"h8": 0.25, "h16": 0.0}, 0.5, 2)
    text = json.loads(found.path.read_text())
    for name, wrong in {"ratios": [1], "start_seconds": -1, "version": 99}.items():
        found.path.write_text(json.dumps({**text, name: wrong}))
        assert ProfileCache.open(tmp_path, "key").configs == {}
    found.path.write_text(json.dumps({name: text[name] for name in ("version", "configs", "packs")}))
    assert ProfileCache.open(tmp_path, "key").configs == found.configs  # an older file has neither


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"null", b'"x"', b'{"version": 1}', b'{"version": 99, "configs": [], "packs": []}',
        b'{"version": 1, "configs": [{"values": {}, "seconds": 1, "pilot": {}}], "packs": []}',
        b'{"version": 1, "configs": [3], "packs": []}', b"\xff\xfe", b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_file_is_ignored_and_replaced(tmp_path: Path, damage: bytes) -> None:
    path = cached(tmp_path, known(8, 0.1)).path
    path.write_bytes(damage)
    found = ProfileCache.open(tmp_path, "key")
    assert found.configs == {}
    found.add([known(8, 0.01)])
    assert ProfileCache.open(tmp_path, "key").find({"hidden": 8, "lr": 0.01}) is not None


@pytest.mark.parametrize("value", [-1.0, "1", None, True, float("nan"), float("inf")])
def test_impossible_times_are_not_believed(tmp_path: Path, value: Any) -> None:
    path = cached(tmp_path, known(8, 0.1)).path
    found = json.loads(path.read_text())
    found["configs"][0]["pilot"]["train_seconds_per_row"] = value
    path.write_text(json.dumps(found))
    assert ProfileCache.open(tmp_path, "key").configs == {}


def test_two_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    first, second = ProfileCache.open(tmp_path, "key"), ProfileCache.open(tmp_path, "key")
    first.add([known(8, 0.1)])
    second.add([known(16, 0.1)])
    assert len(ProfileCache.open(tmp_path, "key").configs) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["key.json"]


def test_the_oldest_are_deleted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_FILES", 2)
    monkeypatch.setattr(cache_module, "MAX_CONFIGS", 3)
    for number, key in enumerate("abc"):
        ProfileCache.open(tmp_path, key).add([known(8, 0.1)])
        os.utime(tmp_path / f"{key}.json", (number, number))
    assert {path.stem for path in tmp_path.iterdir()} == {"b", "c"}
    ProfileCache.open(tmp_path, "b")  # is used
    ProfileCache.open(tmp_path, "d").add([known(hidden, 0.1) for hidden in range(5)])
    assert {path.stem for path in tmp_path.iterdir()} == {"b", "d"}
    assert [each.values["hidden"] for each in ProfileCache.open(tmp_path, "d").configs.values()] == [2, 3, 4]


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("in the way")
    found = ProfileCache.open(tmp_path / "profiles", "key")
    found.add([known(8, 0.1)])
    assert found.find({"hidden": 8, "lr": 0.1}) is not None


def test_the_key_depends_on_what_matters(tmp_path: Path) -> None:
    data, other = small_data(tmp_path / "a"), small_data(tmp_path / "b", proportions=(1, 1))
    cluster = Cluster.local(2, threads=1, device="cpu").sized(4)

    def key(codes: Any = (1,), data: Dataset = data, framework: str = "auto", cluster: Cluster = cluster) -> str:
        return profile_key([describe_code(model_fn), *codes], data, framework, cluster)

    others = {
        key(codes=(2,)), key(data=other), key(framework="torch"),
        key(cluster=Cluster.local(2, threads=2, device="cpu").sized(4)),
        key(cluster=Cluster.local(1, threads=1, device="cpu").sized(4)),
    }  # fmt: skip
    assert len({key(), *others}) == 6
    assert key() == key()
    assert device_names("cpu")[0]


VALUES: dict[str, dict[str, Scalar]] = {
    config_id(values): values
    for values in ({"batch_size": 4, "epoch_steps": 1000, "fails": "never", "lr": lr} for lr in (0.1, 0.2, 0.3))
}


def profiled(folder: Path, data: Dataset, cache: ProfileCache, recipe: Recipe, configs: Any = VALUES) -> Any:
    paths = [tuple(part.path for part in kind) for kind in (data.train, data.eval)]
    setup = WorkerSetup(recipe, 0, paths[0], paths[1], folder / "logs")
    pool, heard = open_pool(Cluster.inline(2, device="cpu").sized(4), setup), list[Event]()
    try:
        outcome = profile_models(pool, ProfilingRequest(data, ONE, configs, cache), ProfilingHooks(heard.append))
    finally:
        pool.close()
    return outcome, [event.task.config for event in heard if isinstance(event, TaskDone) and event.profile]


def test_cached_profiles_are_measured_only_once_by_each_worker(tmp_path: Path) -> None:
    data, recipe = small_data(tmp_path / "data"), Recipe(model_fn, loss_fn)
    cache = ProfileCache.open(tmp_path / "profiles", "key")
    assert cached_models(("w0", "w1"), ProfilingRequest(data, ONE, VALUES, cache)) is None
    first, tried = profiled(tmp_path, data, cache, recipe)
    assert sorted(tried) == sorted(VALUES)
    assert first.cached == set()
    again, tried = profiled(tmp_path, data, ProfileCache.open(tmp_path / "profiles", "key"), recipe)
    assert len(tried) == 2
    assert again.cached == VALUES.keys() - set(tried)
    assert again.profiles.keys() == VALUES.keys()
    (config,) = again.cached
    assert again.profiles[config] == first.profiles[config]

    reopened = ProfileCache.open(tmp_path / "profiles", "key")
    found = cached_models(("w0", "w1"), ProfilingRequest(data, ONE, VALUES, reopened))
    assert found is not None
    assert found.memory == again.memory
    assert found.cached == found.profiles.keys() == VALUES.keys()
    more = {**VALUES, "new": {"batch_size": 5, "epoch_steps": 1000, "fails": "never", "lr": 0.1}}
    assert cached_models(("w0", "w1"), ProfilingRequest(data, ONE, more, cache)) is None


def test_cached_packs_are_not_tried_again(tmp_path: Path) -> None:
    data, cache = small_data(tmp_path / "data"), ProfileCache.open(tmp_path / "profiles", "key")
    cache.add([CachedProfile(values, result(1e-5, "b"), 0.1) for values in VALUES.values()])
    request = ProfilingRequest(data, Goal("loss", "min", 1000, 0), VALUES, cache)
    outcome = cached_models(("w0",), request)
    assert outcome is not None
    assert cached_pack_rates(1, request, outcome) is None  # they are worth trying
    rate = PackRate(3, 123.0, "as if it were so")
    cache.add(packs={"b": CachedPackRate(rate, ("x", "y", "z"))})
    assert cached_pack_rates(1, request, outcome) == {"b": rate}
    paths = [tuple(part.path for part in kind) for kind in (data.train, data.eval)]
    setup = WorkerSetup(Recipe(model_fn, loss_fn), 0, paths[0], paths[1], tmp_path / "logs")
    pool = open_pool(Cluster.inline(1, device="cpu").sized(4), setup)
    outcome.ready["w0"] = WorkerReady("w0", {})
    assert profile_packs(pool, request, outcome) == {"b": rate}


def test_functions_that_no_longer_work_are_noticed(tmp_path: Path) -> None:
    """The key covers the code of the functions, but what they import may have changed."""
    data = small_data(tmp_path / "data")
    cache = ProfileCache.open(tmp_path / "profiles", "key")
    profiled(tmp_path, data, cache, Recipe(model_fn, loss_fn))

    def broken(config: Any) -> Any:
        raise ImportError("it went")

    with pytest.raises(UsageError, match=r"(?s)No configuration can be trained.*ImportError: it went"):
        profiled(tmp_path, data, cache, Recipe(broken, loss_fn))


def test_a_new_configuration_that_fails_does_not_affect_the_others(tmp_path: Path) -> None:
    data, recipe = small_data(tmp_path / "data"), Recipe(model_fn, loss_fn)
    cache = ProfileCache.open(tmp_path / "profiles", "key")
    profiled(tmp_path, data, cache, recipe)
    bad = {f"bad{lr}": {"batch_size": 5, "epoch_steps": 1000, "fails": "build", "lr": lr} for lr in (1.0, 2.0)}
    outcome, tried = profiled(tmp_path, data, cache, recipe, {**VALUES, **bad})
    assert outcome.failed.keys() == bad.keys()
    assert outcome.profiles.keys() == VALUES.keys()
    assert len(tried) == 2


def test_cached_profiles_in_the_journal_count_no_time() -> None:
    line = {"event": "pilot", "time": 1.0, "config": "a", "cached": True, **to_fields(result())}
    record = RunRecord()
    record.apply(line)
    assert record.units == []
    json.dumps(line)


def test_files_of_unknown_rows_differ_by_their_sizes(tmp_path: Path) -> None:
    files = [tmp_path / "a.raw", tmp_path / "b.raw"]

    def key(size: int) -> str:
        for file in files:
            file.write_bytes(bytes(size))
        return profile_key([], Dataset.from_paths(files), "auto", Cluster.inline(1).sized(2))

    assert key(100) == key(100) != key(10_000)


def test_a_metric_that_no_model_reports_is_noticed_without_a_worker(tmp_path: Path) -> None:
    data, cache = small_data(tmp_path / "data"), ProfileCache.open(tmp_path / "profiles", "key")
    cache.add([CachedProfile(values, result(1e-5, "b"), 0.1) for values in VALUES.values()])
    with pytest.raises(UsageError, match="No model reports the metric 'los'"):
        cached_models(("w0",), ProfilingRequest(data, Goal("los", "min", 1, 0), VALUES, cache))


def test_workers_that_do_not_preprocess_do_not_tell_the_start_time(tmp_path: Path) -> None:
    """They import a framework, which takes several times as long as starting a preprocess worker."""
    data, recipe = small_data(tmp_path / "data"), Recipe(model_fn, loss_fn)
    cache = ProfileCache.open(tmp_path / "profiles", "key")
    outcome, _ = profiled(tmp_path, data, cache, recipe)
    assert outcome.start_seconds is not None
    assert ProfileCache.open(tmp_path / "profiles", "key").start_seconds is None
    cache.add([known(8, 0.1)], start_seconds=0.5)
    outcome, _ = profiled(tmp_path, data, ProfileCache.open(tmp_path / "profiles", "key"), recipe)
    assert outcome.start_seconds == 0.5
