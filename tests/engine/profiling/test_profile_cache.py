"""What earlier runs found out: kept, found again, and not trusted where it does not hold."""

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
from regatta.engine.messages import (
    Event,
    ModelProfile,
    Recipe,
    TaskDone,
    WorkerReady,
    WorkerSetup,
)
from regatta.engine.profiling import cache as profiles_module
from regatta.engine.profiling.cache import (
    CachedPackRate,
    Known,
    ProfileCache,
    device_names,
    profile_key,
)
from regatta.engine.profiling.models import cached_models, profile_models, told
from regatta.engine.profiling.packs import cached_rates, profile_packs
from regatta.engine.workers import open_pool
from regatta.errors import UsageError
from regatta.journal.record import RunRecord
from regatta.plan.strategy.form_packs import PackRate
from regatta.search.base import Goal

ONE = Goal("loss", "min", 1, 0)


def result(seconds: float = 0.01, build: str = "b", **more: Any) -> ModelProfile:
    return ModelProfile(seconds, 0.001, 9, 5, 0.05, 100, ("train_loss", "loss"), build=build, **more)


def known(hidden: int, lr: float, seconds: float = 0.01, build: str | None = None) -> Known:
    return Known({"hidden": hidden, "lr": lr}, result(seconds, f"h{hidden}" if build is None else build), 0.5)


def kept(folder: Path, *configs: Known, **packs: CachedPackRate) -> ProfileCache:
    ProfileCache.open(folder, "key").keep(configs, packs)
    return ProfileCache.open(folder, "key")


def test_what_was_measured_is_found_again(tmp_path: Path) -> None:
    whole = result(peak_bytes=7, eval_fixed_seconds=0.02, forgotten=("x",), prepare_seconds_per_row=0.1)
    rate = CachedPackRate(PackRate(4, 2.5, "fused"), ("c1", "c2", "c3", "c4"))
    found = kept(tmp_path, Known({"hidden": 8, "name": "a", "on": True}, whole, 1.5), b=rate)
    assert found.find({"on": True, "name": "a", "hidden": 8}) == whole
    assert found.spent([config_id({"hidden": 8, "name": "a", "on": True}), "other"]) == 1.5
    assert found.rates() == {"b": PackRate(4, 2.5, "fused")}
    assert ProfileCache.open(tmp_path, "other").find({"hidden": 8, "name": "a", "on": True}) is None


def test_a_configuration_that_is_built_like_another_is_as_good_as_known(tmp_path: Path) -> None:
    found = kept(tmp_path, known(8, 0.1), known(8, 0.01, 0.011), known(16, 0.1, 0.02), known(16, 0.01, 0.021))
    assert found.find({"hidden": 8, "lr": 0.15}) == result(0.011, "h8")
    assert found.find({"hidden": 16, "lr": 0.005}) == result(0.021, "h16")
    assert found.find({"hidden": 32, "lr": 0.1}) is None  # nobody knows what it is like
    assert found.find({"hidden": 8, "lr": 0.05, "depth": 3}) is None
    assert found.find({"hidden": 8, "lr": 40.0}) is None  # far from all that was seen
    assert found.find({"hidden": 8, "lr": "high"}) is None


@pytest.mark.parametrize(
    "configs",
    [
        [known(8, 0.1)],  # whether lr matters is not known
        [known(8, 0.1), known(8, 0.01, 0.05)],  # it does
        [known(8, 0.1, build=""), known(8, 0.01, build="")],  # opaque models may be anything
        [known(8, 0.1, build="cuda"), known(8, 0.01, build="cuda")],  # on a GPU, a build is no structure
    ],
)
def test_what_may_matter_is_measured(tmp_path: Path, configs: list[Known]) -> None:
    assert kept(tmp_path, *configs).find({"hidden": 8, "lr": 0.5}) is None
    assert kept(tmp_path, *configs).find({"hidden": 8, "lr": 0.1}) is not None


def test_rates_hold_for_as_many_members_and_on_a_gpu_for_the_same(tmp_path: Path) -> None:
    found = kept(
        tmp_path, b=CachedPackRate(PackRate(4, 2.5), ("a", "c")), cuda=CachedPackRate(PackRate(2, 1.5), ("a", "c"))
    )
    assert found.rate("b", ["x", "y"]) == PackRate(4, 2.5)
    assert found.rate("b", ["x"] * 8) is None
    assert found.rate("cuda", ["c", "a"]) == PackRate(2, 1.5)
    assert found.rate("cuda", ["a", "x"]) is None
    assert found.rate("cuda", []) is None


def test_what_groups_and_processes_took_is_found_again(tmp_path: Path) -> None:
    kept(tmp_path, known(8, 0.1)).keep(ratios={"h8": 0.25}, start_seconds=0.5)
    kept(tmp_path, known(8, 0.01)).keep(ratios={"h16": 0.0})
    found = ProfileCache.open(tmp_path, "key")
    assert (found.ratios, found.start_seconds, len(found.configs)) == ({"h8": 0.25, "h16": 0.0}, 0.5, 2)
    text = json.loads(found.path.read_text())
    for name, wrong in {"ratios": [1], "start_seconds": -1, "version": 99}.items():
        found.path.write_text(json.dumps({**text, name: wrong}))
        assert ProfileCache.open(tmp_path, "key").configs == {}
    found.path.write_text(json.dumps({name: text[name] for name in ("version", "configs", "packs")}))
    assert ProfileCache.open(tmp_path, "key").configs == found.configs  # an older one has neither


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"null", b'"x"', b'{"version": 1}', b'{"version": 99, "configs": [], "packs": []}',
        b'{"version": 1, "configs": [{"values": {}, "seconds": 1, "pilot": {}}], "packs": []}',
        b'{"version": 1, "configs": [3], "packs": []}', b"\xff\xfe", b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_file_is_ignored_and_replaced(tmp_path: Path, damage: bytes) -> None:
    path = kept(tmp_path, known(8, 0.1)).path
    path.write_bytes(damage)
    found = ProfileCache.open(tmp_path, "key")
    assert found.configs == {}
    found.keep([known(8, 0.01)])
    assert ProfileCache.open(tmp_path, "key").find({"hidden": 8, "lr": 0.01}) is not None


@pytest.mark.parametrize("value", [-1.0, "1", None, True, float("nan"), float("inf")])
def test_no_impossible_time_is_believed(tmp_path: Path, value: Any) -> None:
    path = kept(tmp_path, known(8, 0.1)).path
    found = json.loads(path.read_text())
    found["configs"][0]["pilot"]["train_seconds_per_row"] = value
    path.write_text(json.dumps(found))
    assert ProfileCache.open(tmp_path, "key").configs == {}


def test_two_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    first, second = ProfileCache.open(tmp_path, "key"), ProfileCache.open(tmp_path, "key")
    first.keep([known(8, 0.1)])
    second.keep([known(16, 0.1)])
    assert len(ProfileCache.open(tmp_path, "key").configs) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["key.json"]


def test_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles_module, "FILES", 2)
    monkeypatch.setattr(profiles_module, "CONFIGS", 3)
    for number, key in enumerate("abc"):
        ProfileCache.open(tmp_path, key).keep([known(8, 0.1)])
        os.utime(tmp_path / f"{key}.json", (number, number))
    assert {path.stem for path in tmp_path.iterdir()} == {"b", "c"}
    ProfileCache.open(tmp_path, "b")  # is used
    ProfileCache.open(tmp_path, "d").keep([known(hidden, 0.1) for hidden in range(5)])
    assert {path.stem for path in tmp_path.iterdir()} == {"b", "d"}
    assert [each.values["hidden"] for each in ProfileCache.open(tmp_path, "d").configs.values()] == [2, 3, 4]


def test_a_folder_that_takes_nothing_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("in the way")
    found = ProfileCache.open(tmp_path / "profiles", "key")
    found.keep([known(8, 0.1)])
    assert found.find({"hidden": 8, "lr": 0.1}) is not None


def test_the_key_tells_what_matters(tmp_path: Path) -> None:
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


def piloted(folder: Path, data: Dataset, profiles: ProfileCache, recipe: Recipe, configs: Any = VALUES) -> Any:
    paths = [tuple(part.path for part in kind) for kind in (data.train, data.eval)]
    setup = WorkerSetup(recipe, 0, paths[0], paths[1], folder / "logs")
    pool, heard = open_pool(Cluster.inline(2, device="cpu").sized(4), setup), list[Event]()
    try:
        outcome = profile_models(pool, data, configs, 1, "loss", heard.append, profiles=profiles)
    finally:
        pool.close()
    return outcome, [event.task.config for event in heard if isinstance(event, TaskDone) and event.profile]


def test_what_is_known_is_not_tried_again_but_by_each_worker_once(tmp_path: Path) -> None:
    data, recipe = small_data(tmp_path / "data"), Recipe(model_fn, loss_fn)
    profiles = ProfileCache.open(tmp_path / "profiles", "key")
    assert cached_models(("w0", "w1"), data, VALUES, ONE, profiles) is None
    first, tried = piloted(tmp_path, data, profiles, recipe)
    assert sorted(tried) == sorted(VALUES)
    assert first.cached == set()
    again, tried = piloted(tmp_path, data, ProfileCache.open(tmp_path / "profiles", "key"), recipe)
    assert len(tried) == 2
    assert again.cached == VALUES.keys() - set(tried)
    assert again.results.keys() == VALUES.keys()
    (config,) = again.cached
    assert again.results[config] == first.results[config]

    found = cached_models(("w0", "w1"), data, VALUES, ONE, ProfileCache.open(tmp_path / "profiles", "key"))
    assert found is not None
    assert found.memory == again.memory
    assert found.cached == found.results.keys() == VALUES.keys()
    more = {**VALUES, "new": {"batch_size": 5, "epoch_steps": 1000, "fails": "never", "lr": 0.1}}
    assert cached_models(("w0", "w1"), data, more, ONE, profiles) is None


def test_packs_that_are_known_are_not_tried_again(tmp_path: Path) -> None:
    data, profiles = small_data(tmp_path / "data"), ProfileCache.open(tmp_path / "profiles", "key")
    profiles.keep([Known(values, result(1e-5, "b"), 0.1) for values in VALUES.values()])
    outcome = cached_models(("w0",), data, VALUES, Goal("loss", "min", 1000, 0), profiles)
    assert outcome is not None
    assert cached_rates(1, data, VALUES, 1000, outcome, profiles) is None  # they are worth trying
    rate = PackRate(3, 123.0, "as if it were so")
    profiles.keep(packs={"b": CachedPackRate(rate, ("x", "y", "z"))})
    assert cached_rates(1, data, VALUES, 1000, outcome, profiles) == {"b": rate}
    paths = [tuple(part.path for part in kind) for kind in (data.train, data.eval)]
    setup = WorkerSetup(Recipe(model_fn, loss_fn), 0, paths[0], paths[1], tmp_path / "logs")
    pool = open_pool(Cluster.inline(1, device="cpu").sized(4), setup)
    outcome.ready["w0"] = WorkerReady("w0", {})
    assert profile_packs(pool, data, VALUES, 1000, outcome, profiles=profiles) == {"b": rate}


def test_functions_that_no_longer_work_are_found_out(tmp_path: Path) -> None:
    """A profile is of the functions' code, but what they import may have changed."""
    data = small_data(tmp_path / "data")
    profiles = ProfileCache.open(tmp_path / "profiles", "key")
    piloted(tmp_path, data, profiles, Recipe(model_fn, loss_fn))

    def broken(config: Any) -> Any:
        raise ImportError("it went")

    with pytest.raises(UsageError, match=r"No configuration can be trained.*ImportError: it went"):
        piloted(tmp_path, data, profiles, Recipe(broken, loss_fn))


def test_a_new_configuration_that_fails_is_its_own_fault(tmp_path: Path) -> None:
    data, recipe = small_data(tmp_path / "data"), Recipe(model_fn, loss_fn)
    profiles = ProfileCache.open(tmp_path / "profiles", "key")
    piloted(tmp_path, data, profiles, recipe)
    bad = {f"bad{lr}": {"batch_size": 5, "epoch_steps": 1000, "fails": "build", "lr": lr} for lr in (1.0, 2.0)}
    outcome, tried = piloted(tmp_path, data, profiles, recipe, {**VALUES, **bad})
    assert outcome.failed.keys() == bad.keys()
    assert outcome.results.keys() == VALUES.keys()
    assert len(tried) == 2


def test_the_journal_tells_what_an_earlier_run_measured_and_counts_no_time_for_it() -> None:
    line = {"event": "pilot", "time": 1.0, "config": "a", "cached": True, **told(result())}
    record = RunRecord()
    record.apply(line)
    assert record.units == []
    json.dumps(line)


def test_files_of_unknown_length_are_told_apart_by_their_sizes(tmp_path: Path) -> None:
    files = [tmp_path / "a.raw", tmp_path / "b.raw"]

    def key(size: int) -> str:
        for file in files:
            file.write_bytes(bytes(size))
        return profile_key([], Dataset.from_paths(files), "auto", Cluster.inline(1).sized(2))

    assert key(100) == key(100) != key(10_000)


def test_a_metric_that_nobody_reports_is_found_out_without_a_worker(tmp_path: Path) -> None:
    data, profiles = small_data(tmp_path / "data"), ProfileCache.open(tmp_path / "profiles", "key")
    profiles.keep([Known(values, result(1e-5, "b"), 0.1) for values in VALUES.values()])
    with pytest.raises(UsageError, match="No model reports the metric 'los'"):
        cached_models(("w0",), data, VALUES, Goal("los", "min", 1, 0), profiles)


def test_workers_that_prepare_nothing_do_not_say_how_long_those_take_that_do(tmp_path: Path) -> None:
    """They import a framework, which takes several times as long."""
    data, recipe = small_data(tmp_path / "data"), Recipe(model_fn, loss_fn)
    profiles = ProfileCache.open(tmp_path / "profiles", "key")
    outcome, _ = piloted(tmp_path, data, profiles, recipe)
    assert outcome.start_seconds is not None
    assert ProfileCache.open(tmp_path / "profiles", "key").start_seconds is None
    profiles.keep([known(8, 0.1)], start_seconds=0.5)
    outcome, _ = piloted(tmp_path, data, ProfileCache.open(tmp_path / "profiles", "key"), recipe)
    assert outcome.start_seconds == 0.5
