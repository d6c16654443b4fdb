"""Several data sets for one sweep: each model is trained on the one that its configuration names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipes import WIDTH, plain_fn, plain_loss, small_data

import regatta
from regatta import Cluster, Dataset, Run, Sweep, search
from regatta.data.dataset_choice import paths_of
from regatta.engine.workers.worker_main import readable_partitions
from regatta.errors import DataError, UsageError


def noisy_data(folder: Path, rows: int = 44, **options: Any) -> Dataset:
    generator = np.random.default_rng(8)
    x, y = generator.normal(size=(rows, WIDTH)).astype(np.float32), generator.integers(0, 3, rows)
    options = {"partitions": 4, "eval_fraction": 0.25, "eval_partitions": 3, "name": "noisy", **options}
    return Dataset.from_arrays(x, y, directory=folder, **options)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    folder = tmp_path_factory.mktemp("data")
    return {"small": small_data(folder / "small"), "noisy": noisy_data(folder / "noisy")}


def sweep(data: Dataset, repo: Path, space: Any, **options: Any) -> Sweep:
    given = {"epochs": 2, "visits": "seeded", "cluster": Cluster.inline(2), "framework": "numpy", **options}
    return Sweep(data, space, plain_fn, loss_fn=plain_loss, repo=repo, **given)


def results(run: Run, data: str) -> dict[Any, Any]:
    """The hashes of all states, and the rows of all units, without the name of the data set."""
    configs = [config for config in run.record.configs.values() if config.values["data"] == data]
    return {
        (config.values["lr"], unit.kind, unit.epoch, unit.partition): (unit.hash, unit.rows, unit.metrics)
        for config in configs
        for unit in config.units
        if unit.kind != "pilot"
    }


def test_each_model_is_trained_as_on_its_data_set_alone(both: dict[str, Dataset], tmp_path: Path) -> None:
    rates = [0.01, 0.05]
    together = sweep(
        Dataset.by_config("data", both), tmp_path / "all", search.grid(lr=rates, data=list(both), batch_size=[5])
    ).launch(progress=False)
    assert together.record.status == "done"
    for name, data in both.items():
        space = search.grid(lr=rates, data=[name], batch_size=[5])
        alone = sweep(data, tmp_path / name, space).launch(progress=False)
        assert results(together, name) == results(alone, name) != {}
    rows = {name: {rows for _, rows, _ in results(together, name).values()} for name in both}
    assert rows["small"] != rows["noisy"]
    assert together.replay().ok
    described = together.record.header["dataset"]
    assert described["by"] == "data"
    assert {name: each["fingerprint"] for name, each in described["of"].items()} == {
        name: data.fingerprint for name, data in both.items()
    }


def test_models_of_several_data_sets_are_never_packed_together(both: dict[str, Dataset], tmp_path: Path) -> None:
    from recipes import loss_fn, model_fn

    space = search.grid(lr=[0.01, 0.02, 0.05], data=list(both), batch_size=[5])
    data = Dataset.by_config("data", both)
    run = regatta.launch(
        data, space, model_fn, loss_fn=loss_fn, epochs=2, pack=True, cluster=Cluster.inline(1), repo=tmp_path,
        progress=False,
    )  # fmt: skip
    packs: dict[str, set[Any]] = {}
    for unit in run.record.units:
        if unit.pack is not None:
            packs.setdefault(unit.pack, set()).add(run.record.configs[unit.config].values["data"])
    assert packs
    assert all(len(names) == 1 for names in packs.values())
    assert run.replay().ok


def test_a_choice_is_found_again_after_the_project_was_moved(both: dict[str, Dataset], tmp_path: Path) -> None:
    data = {name: small_data(tmp_path / "a" / name, rows=40 + 4 * n) for n, name in enumerate(both)}
    choice = Dataset.by_config("data", data)
    (tmp_path / "a").rename(tmp_path / "b")
    moved = choice.relative_to(tmp_path / "a").below(tmp_path / "b")
    moved.check()
    moved.check_present()
    with pytest.raises(DataError, match="does not exist"):
        choice.check_present()
    assert moved.fingerprint == choice.fingerprint


def test_a_missing_file_of_any_data_set_is_found(both: dict[str, Dataset], tmp_path: Path) -> None:
    other = noisy_data(tmp_path / "noisy")
    choice = Dataset.by_config("data", {"small": both["small"], "noisy": other})
    other.train[1].path.unlink()
    with pytest.raises(DataError, match="does not exist"):
        choice.check()
    with pytest.raises(DataError, match="does not exist"):
        choice.check_present()
    joining = sweep(Dataset.by_config("data", both), tmp_path, search.grid(data=list(both), batch_size=[5]))
    setup = joining._setup(tmp_path)
    object.__setattr__(setup, "choice", paths_of(choice.choice))  # type: ignore[arg-type]
    assert readable_partitions(setup) == {"train": [0, 2, 3], "eval": [0, 1, 2]}


def test_wrong_choices(both: dict[str, Dataset], tmp_path: Path) -> None:
    small = both["small"]
    with pytest.raises(UsageError, match="by is 3"):
        Dataset.by_config(3, both)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give them by name"):
        Dataset.by_config("data", {})
    with pytest.raises(UsageError, match="made of single data sets"):
        Dataset.by_config("data", {"x": Dataset.by_config("data", both)})
    with pytest.raises(DataError, match="has 4 training partitions, and 'fewer' has 2"):
        Dataset.by_config("data", {"small": small, "fewer": noisy_data(tmp_path / "fewer", partitions=2)})
    with pytest.raises(DataError, match="has 3 evaluation partitions, and 'fewer' has 1"):
        Dataset.by_config("data", {"small": small, "fewer": noisy_data(tmp_path / "one", eval_partitions=1)})
    x, y = np.zeros((20, 2), np.float32), np.zeros(20, np.int64)
    narrow = Dataset.from_arrays(x, y, partitions=4, eval_partitions=3, directory=tmp_path / "narrow")
    with pytest.raises(DataError, match=r"The columns of the data set 'small' are x: float32\[6\]"):
        Dataset.by_config("data", {"small": small, "narrow": narrow})
    choice = Dataset.by_config("data", both)
    with pytest.raises(UsageError, match="has no 'data', which names its data set"):
        sweep(choice, tmp_path, search.grid(lr=[0.1], batch_size=[5]))
    with pytest.raises(UsageError, match="Did you mean small"):
        sweep(choice, tmp_path, search.grid(data=["smal"], batch_size=[5]))
    with pytest.raises(UsageError, match="no transform_fn"):
        space = search.grid(data=list(both), batch_size=[5])
        sweep(choice, tmp_path, space, transform_fn=lambda batch, seed: batch)
