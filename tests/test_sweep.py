"""Sweeps that are wrong fail before they train, and say what to do; runs are futures that can be looked at."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import children
from recipes import WIDTH, Net, eval_fn, loss_fn, model_fn, small_data, train_fn
from torch import nn

import regatta
from regatta import Cluster, Dataset, Run, Sweep, open_run, search
from regatta.configuration import config_id
from regatta.errors import ConflictError, DataError, NotFoundError, UsageError
from regatta.repo import Repo
from regatta.run import list_runs

SPACE = {"lr": [0.01, 0.1], "batch_size": [5]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_data(tmp_path_factory.mktemp("data"))


def launch(data: Dataset, repo: Path, space: Any = None, **options: Any) -> Run:
    options = {"model_fn": model_fn, "loss_fn": loss_fn, "cluster": Cluster.inline(2), "repo": repo, **options}
    return regatta.launch(data, space or search.grid(**SPACE), options.pop("model_fn"), progress=False, **options)


def refused(repo: Path, error: type[Exception], texts: tuple[str, ...], attempt: Callable[[], Any]) -> None:
    """The attempt ends in this error, with all of these texts, and leaves nothing behind."""
    before = children(os.getpid())
    threads = set(threading.enumerate())
    with pytest.raises(error) as caught:
        attempt()
    for text in texts:
        assert text in str(caught.value)
    runs = repo / "runs"
    assert not runs.exists() or list(runs.iterdir()) == []
    assert children(os.getpid()) == before
    assert set(threading.enumerate()) <= threads


# -- what is known to be wrong at once ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: search.grid(), "no axes"),
        (lambda: search.grid(lr=[], batch_size=[5]), "The axis 'lr' is empty"),
        (lambda: search.configs([]), "The list of configurations is empty"),
        (lambda: search.random(n=3), "no axes"),
    ],
)
def test_an_empty_space_is_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make()


class Nothing:
    """A search that never asks for anything."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "nothing"}

    def start(self, goal: Any) -> list[Any]:
        return []

    def hear(self, report: Any) -> list[Any]:
        return []


def two(a: Any, b: Any) -> None: ...


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a search without configurations": ({"space": Nothing()}, ("no configuration to begin with",)),
    "no batch_size": ({"space": search.grid(lr=[0.1])}, ("{'lr': 0.1} has no batch_size", "batch_size=[32]")),
    "batchsize": ({"space": search.grid(batchsize=[5])}, ("has no batch_size", "Rename 'batchsize' to 'batch_size'")),
    "batch_size 0": ({"space": search.grid(batch_size=[5, 0])}, ("batch_size is 0", "a whole number from 1")),
    "batch_size '32'": ({"space": search.grid(batch_size=["32"])}, ("batch_size is '32'", "a whole number from 1")),
    "batch_size True": ({"space": search.grid(batch_size=[True])}, ("batch_size is True",)),
    "batch_size 2.5": ({"space": search.grid(batch_size=[2.5])}, ("batch_size is 2.5",)),
    "a search that is none": ({"space": 3}, ("search is 3", "regatta.search.grid(...)")),
    "a dict as search": ({"space": {"lr": [0.1]}}, ("search is {'lr': ", "Pass it to regatta.search.grid(...)")),
    "a list as search": ({"space": [{"lr": 0.1}]}, ("search is [{'lr': ", "Pass it to regatta.search.configs(...)")),
    "epochs 0": ({"epochs": 0}, ("epochs is 0; it must be a whole number from 1",)),
    "epochs 1.5": ({"epochs": 1.5}, ("epochs is 1.5",)),
    "epochs True": ({"epochs": True}, ("epochs is True",)),
    "mode best": ({"mode": "best"}, ("mode is 'best'", '"min" or "max"')),
    "no metric": ({"metric": None}, ("metric is None", 'a name such as "loss"')),
    "a module as model_fn": ({"model_fn": nn.Linear(2, 2)}, ("model_fn is a Linear", "def model_fn(config)")),
    "a seed of letters": ({"seed": "lucky"}, ("seed is 'lucky'", "a whole number")),
    "an unknown rule": ({"rule": "randomised"}, ("no hop rule 'randomised'", "Did you mean randomized?")),
    "an unknown framework": ({"framework": "pytorch"}, ("no framework 'pytorch'", "Did you mean torch?")),
    "an unknown argument": ({"epoch": 3}, ("launch has no argument 'epoch'", "Did you mean epochs")),
    "both loss_fn and train_fn": ({"train_fn": train_fn}, ("either loss_fn or train_fn, not both",)),
    "neither": (
        {"loss_fn": None, "framework": "torch"},
        ("Give either loss_fn or train_fn.", "loss_fn(model, batch, config)", 'framework="keras"'),
    ),
    "a loss_fn of two arguments": ({"loss_fn": two}, ("Regatta calls loss_fn(model, batch, config); yours ",)),
    "a model_fn of two arguments": ({"model_fn": two}, ("Regatta calls model_fn(config); yours takes (a, b).",)),
    "an eval_fn of two arguments": ({"eval_fn": two}, ("Regatta calls eval_fn(data, model, config)",)),
    "an input_fn of two arguments": ({"input_fn": two}, ("Regatta calls input_fn(path)",)),
    "a loss_fn that is not a function": ({"loss_fn": 0.5}, ("loss_fn is 0.5, which cannot be called",)),
    "a name of two folders": ({"name": "../elsewhere"}, ("cannot be named '../elsewhere'", "letters, digits")),
    "an empty name": ({"name": ""}, ("cannot be named ''",)),
    "a name that is not a text": ({"name": 5}, ("cannot be named 5",)),
    "a cluster that is none": ({"cluster": 4}, ("cluster is 4", "Cluster.local(")),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sweep_is_refused(data: Dataset, tmp_path: Path, name: str) -> None:
    options, texts = WRONG[name]
    refused(tmp_path, UsageError, texts, lambda: launch(data, tmp_path, **options))


def test_a_data_set_of_another_type_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, UsageError, ("dataset is 'digits'", "a regatta.Dataset"), lambda: launch("digits", tmp_path))  # type: ignore[arg-type]


def test_arrays_instead_of_a_data_set_are_not_printed(tmp_path: Path) -> None:
    arrays: Any = (np.zeros((100, 4)), np.zeros(100))
    with pytest.raises(UsageError) as caught:
        launch(arrays, tmp_path)
    first = (
        "dataset is a tuple of a ndarray of shape (100, 4), a ndarray of shape (100,); it must be a regatta.Dataset."
    )
    assert str(caught.value) == f"{first}\nMake one: regatta.Dataset.from_arrays(x, y, partitions=4)"


@pytest.mark.parametrize(
    ("option", "text"),
    [("n_epochs", "Did you mean epochs?"), ("space", "Its arguments are dataset, search, model_fn, loss_fn, ")],
)
def test_a_sweep_refuses_an_unknown_argument(data: Dataset, option: str, text: str) -> None:
    unknown: dict[str, Any] = {option: 3}
    with pytest.raises(UsageError, match=f"Sweep has no argument '{option}'") as caught:
        Sweep(data, search.grid(batch_size=[5]), model_fn, **unknown)
    assert text in str(caught.value)


# -- data --------------------------------------------------------------------------------------------------


def paths_of(data: Dataset) -> tuple[list[Path], list[Path]]:
    return [part.path for part in data.train], [part.path for part in data.eval]


def test_a_missing_partition(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    lost = data.train[2].path
    lost.unlink()
    refused(tmp_path, DataError, (str(lost), "does not exist"), lambda: launch(data, tmp_path))
    refused(tmp_path, DataError, (str(lost), "does not exist"), lambda: Dataset.from_paths(*paths_of(data)))


def test_a_partition_that_is_cut_off(tmp_path: Path) -> None:
    data = small_data(tmp_path / "data")
    short = data.eval[1].path
    short.write_bytes(short.read_bytes()[:-10])
    refused(tmp_path, DataError, (str(short), "cut off"), lambda: launch(data, tmp_path))
    refused(tmp_path, DataError, (str(short), "cut off"), lambda: Dataset.from_paths(*paths_of(data)))


def test_a_partition_with_another_number_of_columns(tmp_path: Path) -> None:
    for number, columns in enumerate((2, 2, 3)):
        np.savez(tmp_path / f"{number}.npz", **{f"c{c}": np.zeros((9, 2)) for c in range(columns)})
    files = [tmp_path / f"{number}.npz" for number in range(3)]
    texts = (str(files[2]), "3 columns", "0.npz has", "2 columns")
    refused(tmp_path, DataError, texts, lambda: Dataset.from_paths(files))


def test_a_partition_that_changed_since(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.npz" for number in range(2)]
    for file in files:
        np.savez(file, x=np.zeros((9, WIDTH), np.float32), y=np.zeros(9, np.int64))
    data = Dataset.from_paths(files)
    np.savez(files[1], x=np.zeros((9, WIDTH), np.float32))
    refused(tmp_path, DataError, (str(files[1]), "has changed"), lambda: launch(data, tmp_path, metric="train_loss"))


def test_fewer_rows_than_partitions(tmp_path: Path) -> None:
    texts = ("4 training rows for 5 partitions", "fewer partitions")
    x, y = np.zeros((5, 2)), np.zeros(5)
    refused(tmp_path, DataError, texts, lambda: Dataset.from_arrays(x, y, partitions=5, directory=tmp_path))


def test_a_file_that_only_an_input_fn_can_read(tmp_path: Path) -> None:
    (tmp_path / "part.csv").write_text("1,2\n")
    data = Dataset.from_paths([tmp_path / "part.csv"])
    refused(tmp_path, DataError, ("'.csv' is unknown", "input_fn"), lambda: launch(data, tmp_path))


def test_a_partition_held_by_a_worker_that_is_not_there(data: Dataset, tmp_path: Path) -> None:
    train, held = paths_of(data)
    placed = Dataset.from_paths(train, held, availability={**{path: [0] for path in train}, train[1]: [7]})
    refused(tmp_path, UsageError, ("worker number 7; there are 2",), lambda: launch(placed, tmp_path))


# -- what only trying shows ----------------------------------------------------------------------------------


def none(config: Any) -> Any: ...


def a_class(config: Any) -> Any:
    return Net


def other_module(config: Any) -> Any:
    return Net(4), torch.optim.Adam(Net(4).parameters())


def four_things(config: Any) -> Any:
    model = Net(4)
    return model, torch.optim.Adam(model.parameters()), None, None


def no_optimizer(config: Any) -> Any:
    return Net(4)


def vector_loss(model: Any, batch: Any, config: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def float_loss(model: Any, batch: Any, config: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1]).item()


def no_loss(model: Any, batch: Any, config: Any) -> Any:
    nn.functional.cross_entropy(model(batch[0]), batch[1])


def pair_loss(model: Any, batch: Any, config: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1]), 0.5


def dict_loss(model: Any, batch: Any, config: Any) -> Any:
    return {"cross_entropy": nn.functional.cross_entropy(model(batch[0]), batch[1])}


def misspelt(config: Any) -> Any:
    return config["batchsize"]


def no_data(*arguments: Any) -> None:
    pass


def lists(path: Any) -> Any:
    return [[0.0] * 4] * 10, [0] * 10


def uneven(path: Any) -> Any:
    return np.zeros((10, 4), np.float32), np.zeros(9, np.int64)


def list_eval(data: Any, model: Any, config: Any) -> Any:
    return [0.5]


def text_eval(data: Any, model: Any, config: Any) -> Any:
    return {"accuracy": "high"}


TRIED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "None": ({"model_fn": none}, ("model_fn returned None (is a `return` missing?)",)),
    "a class": ({"model_fn": a_class}, ("model_fn returned the class Net, not one of its objects",)),
    "an optimizer of another module": ({"model_fn": other_module}, ("the module beside it lacks",)),
    "four things": ({"model_fn": four_things}, ("model_fn returned 4 things",)),
    "no optimizer": ({"model_fn": no_optimizer}, ("model_fn returned none", "Return (module, optimizer)")),
    "another framework": ({"framework": "numpy"}, ("where a dict of arrays belongs",)),
    "a loss per row": ({"loss_fn": vector_loss}, ("loss_fn returned shape (5,)", "Take its mean")),
    "a loss that is a float": ({"loss_fn": float_loss}, ("loss_fn returned float", "as a tensor")),
    "a loss_fn without a return": ({"loss_fn": no_loss}, ("loss_fn returned None", "Write `return loss`")),
    "a loss and more": ({"loss_fn": pair_loss}, ("loss_fn returned (Tensor, float)", "Return the loss alone")),
    "a dict of losses": ({"loss_fn": dict_loss}, ("a dict of 'cross_entropy'", "losses['cross_entropy']")),
    "a misspelt hyperparameter": ({"model_fn": misspelt}, ("KeyError: 'batchsize'", "Did you mean batch_size?")),
    "an eval_fn without a return": ({"eval_fn": no_data}, ("eval_fn returned None (is a `return` missing?)",)),
    "an eval_fn that returns a list": ({"eval_fn": list_eval}, ("eval_fn returned list; it returns a dict",)),
    "an eval_fn that returns text": ({"eval_fn": text_eval}, ("{'accuracy': 'high'}", "must be one number")),
}  # fmt: skip


UNREADABLE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "lists of numbers": ({"input_fn": lists}, ("holds 0.0 where an array belongs", "np.asarray")),
    "arrays of unequal length": ({"input_fn": uneven}, ("different numbers of rows: 10, 9", ".safetensors: ")),
    "an input_fn without a return": (
        {"input_fn": no_data}, ("input_fn returned None (is a `return` missing?)", ".safetensors: ")
    ),
    "a transform_fn without a return": (
        {"transform_fn": no_data}, ("transform_fn returned None (is a `return` missing?)",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_no_configuration_is_blamed_for_data_that_cannot_be_read(data: Dataset, tmp_path: Path, name: str) -> None:
    options, texts = UNREADABLE[name]
    texts = ("No configuration can be trained, because a partition cannot be read:", *texts)
    refused(tmp_path, UsageError, texts, lambda: launch(data, tmp_path, **options))


@pytest.mark.parametrize("name", TRIED)
def test_errors_that_only_profiling_finds(data: Dataset, tmp_path: Path, name: str) -> None:
    options, texts = TRIED[name]
    texts = ("No configuration can be trained", "Its values: {'lr': ", *texts)
    refused(tmp_path, UsageError, texts, lambda: launch(data, tmp_path, **options))


def test_data_of_float64_get_a_hint(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, WIDTH))
    data = Dataset.from_arrays(x, np.zeros(60, "int64"), partitions=2, directory=tmp_path / "data")
    refused(tmp_path, UsageError, ("pass x.astype('float32')",), lambda: launch(data, tmp_path))


def test_targets_of_float64_get_a_hint(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, WIDTH)).astype("float32")
    data = Dataset.from_arrays(x, np.zeros(60), partitions=2, directory=tmp_path / "data")
    refused(tmp_path, UsageError, ("pass y.astype('int64')",), lambda: launch(data, tmp_path))


def test_an_unknown_metric(data: Dataset, tmp_path: Path) -> None:
    texts = ("No model reports the metric 'acuracy'", "accuracy, loss, train_loss", "Did you mean accuracy?")
    refused(tmp_path, UsageError, texts, lambda: launch(data, tmp_path, eval_fn=eval_fn, metric="acuracy"))


def test_a_metric_without_evaluation_data(data: Dataset, tmp_path: Path) -> None:
    only_train = Dataset.from_paths(paths_of(data)[0])
    texts = ("No model reports the metric 'loss'", "Did you mean train_loss?")
    refused(tmp_path, UsageError, texts, lambda: launch(only_train, tmp_path))


def test_worker_processes_do_not_outlive_a_wrong_sweep(data: Dataset, tmp_path: Path) -> None:
    refused(
        tmp_path, UsageError, ("model_fn returned None",),
        lambda: launch(data, tmp_path, model_fn=none, cluster=Cluster.local(1, threads=1), name="wrong"),
    )  # fmt: skip


def test_a_wrong_sweep_in_the_background_raises_when_asked(data: Dataset, tmp_path: Path) -> None:
    run = launch(data, tmp_path, model_fn=none, wait=False)
    with pytest.raises(UsageError, match="model_fn returned None"):
        run.result(timeout=300)
    with pytest.raises(UsageError, match="model_fn returned None"):
        _ = run.best
    assert run.done()
    assert list((tmp_path / "runs").iterdir()) == []


# -- where it goes --------------------------------------------------------------------------------------------


def test_a_repository_that_cannot_be_written(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    texts = (str(tmp_path / "file" / "repo"), "cannot be written", "Not a directory", "Make it writable")
    refused(tmp_path, UsageError, texts, lambda: launch(data, tmp_path / "file" / "repo"))


def test_runs_that_cannot_be_created_are_errors(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(UsageError, match="cannot be written"):
        launch(data, tmp_path)


def test_functions_that_cannot_be_pickled_are_refused(data: Dataset, tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(model: Any, batch: Any, config: Any) -> Any:
        with lock:
            return loss_fn(model, batch, config)

    texts = ("cannot be sent to workers", "lock", "open those inside")
    refused(tmp_path, UsageError, texts, lambda: launch(data, tmp_path, loss_fn=locked))
    with (tmp_path / "file").open("w") as file:

        def writing(config: Any) -> Any:
            file.write("x")
            return model_fn(config)

        refused(tmp_path, UsageError, ("cannot be sent",), lambda: launch(data, tmp_path, model_fn=writing))


# -- a run ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(data: Dataset, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    space = search.configs(
        [{"lr": 0.01, "batch_size": 5}, {"lr": 0.1, "batch_size": 5}, {"fails": "build", "batch_size": 5}]
    )
    return launch(
        data, tmp_path_factory.mktemp("repo"), space, eval_fn=eval_fn, epochs=2, name="first", metric="accuracy"
    )


def test_a_name_that_is_taken_is_refused(run: Run, data: Dataset) -> None:
    repo = run.folder.parents[1]
    with pytest.raises(ConflictError, match="There is a run named 'first' already") as caught:
        launch(data, repo, name="first")
    assert "Choose another name" in str(caught.value)
    assert [entry.name for entry in (repo / "runs").iterdir()] == ["first"]
    assert open_run("first", repo).record.status == "done"


def test_launch_passes_on_whether_to_wait_and_to_resume(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, ...]] = []
    monkeypatch.setattr(regatta.Sweep, "launch", lambda sweep, *arguments: seen.append(arguments))
    launch(data, tmp_path, wait=True, resume=False)
    assert seen == [(True, False, False, False)]


def test_launch_has_the_options_of_a_sweep_and_passes_them_on(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = inspect.signature(regatta.launch).parameters
    of_sweep = inspect.signature(regatta.Sweep.__init__).parameters
    of_launch = inspect.signature(regatta.Sweep.launch).parameters
    wanted = {name: each for name, each in {**of_sweep, **of_launch}.items() if name != "self"}
    assert list(own) == list(wanted)
    for name, each in wanted.items():
        assert (own[name].annotation, own[name].default) == (each.annotation, each.default), name

    seen: dict[str, Any] = {}

    class Recorder:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            seen.update(options)

        def launch(self, *arguments: Any) -> None:
            seen.update(zip(list(of_launch)[1:], arguments, strict=True))

    monkeypatch.setattr("regatta.sweep.Sweep", Recorder)
    given = {name: object() for name in list(wanted)[3:]}
    regatta.launch(data, None, None, **given)  # type: ignore[arg-type]
    assert seen == given


def test_runs_without_a_name_are_numbered(data: Dataset, tmp_path: Path) -> None:
    small = search.grid(lr=[0.1], batch_size=[64])
    names = [launch(data, tmp_path, small).name for _ in range(2)]
    assert names == ["small-1", "small-2"]
    assert [record.name for record in list_runs(tmp_path)] == names
    with open(tmp_path / "runs" / "small-1" / "journal.jsonl", "ab"):
        os.utime(tmp_path / "runs" / "small-1" / "journal.jsonl")  # it was changed later, as by `regatta resume`
    assert [record.name for record in list_runs(tmp_path)] == names


def test_ctrl_c_ends_in_a_short_traceback(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(runner: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("regatta.engine.controller.runner.Runner.run", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        Sweep(data, search.grid(**SPACE), model_fn, loss_fn=loss_fn, repo=tmp_path).launch(progress=False)
    assert [frame.name for frame in caught.traceback][1:] == ["launch", "train"]


def test_the_best_is_an_epoch_of_a_configuration(run: Run) -> None:
    best = run.best
    assert best is not None
    config = run.find(best["config"])
    assert best["values"] == config.values
    assert best["accuracy"] == max(max(c.series("accuracy"), default=0) for c in run.record.configs.values())
    assert config.reports[best["epoch"]]["accuracy"] == best["accuracy"]


def test_the_table_has_a_row_for_each_configuration(run: Run) -> None:
    rows = run.table()
    assert len(rows) == 3
    assert rows[0]["accuracy"] >= rows[1]["accuracy"]
    assert [row["status"] for row in rows] == ["done", "done", "failed"]
    assert rows[2]["accuracy"] is None
    assert rows[2]["error"] == "ValueError: no such model"
    assert all(row["seconds"] > 0 for row in rows[:2])


def test_the_table_as_a_frame(run: Run) -> None:
    frame = run.to_pandas()
    assert len(frame) == 3
    assert {"lr", "batch_size", "config", "status", "accuracy", "best_epoch", "last", "seconds"} <= set(frame.columns)
    assert frame.iloc[0]["config"] == run.table()[0]["config"]


def test_the_trace_has_a_row_for_each_unit(run: Run) -> None:
    rows = run.trace()
    assert len(rows) == len(run.record.units)
    names = {"kind", "config", "epoch", "partition", "worker", "start", "end", "hop_bytes", "hop_seconds"}
    assert all(set(row) == names for row in rows)


def test_configurations_are_found_by_id_start_or_values(run: Run) -> None:
    wanted = {"lr": 0.1, "batch_size": 5}
    name = config_id(wanted)
    assert run.find(name).id == run.find(name[:7]).id == run.find(wanted).id == name
    with pytest.raises(NotFoundError, match="has no configuration"):
        run.find({"lr": 0.2, "batch_size": 5})
    with pytest.raises(NotFoundError, match="3 configurations whose id starts with ''"):
        run.find("")
    with pytest.raises(NotFoundError, match=f"Did you mean {name}"):
        run.find(name[:-1] + ("0" if name[-1] != "0" else "1"))


def test_weights_by_epoch(run: Run) -> None:
    wanted = {"lr": 0.1, "batch_size": 5}
    first, second, newest = run.weights(wanted, 1), run.weights(wanted, 2), run.weights(wanted)
    assert (int(first["steps"]), int(second["steps"]), int(newest["steps"])) == (10, 20, 20)
    with pytest.raises(NotFoundError, match="no state of epoch 3"):
        run.weights(wanted, 3)
    with pytest.raises(NotFoundError, match="has no state"):
        run.weights({"fails": "build", "batch_size": 5})


def test_a_finished_run_is_a_future_that_is_done(run: Run) -> None:
    assert run.done()
    assert run.result() is run
    assert run.result(timeout=0) is run
    assert repr(run) == "<Run first: done, 16 of 16 units, 3 models>"


def test_an_opened_run_is_the_same(run: Run, tmp_path: Path) -> None:
    again = open_run("first", run.folder.parents[1])
    assert again.table() == run.table()
    assert again.best == run.best
    assert again.trace() == run.trace()
    assert again.sweep().goal == run.sweep().goal
    with pytest.raises(NotFoundError, match="no run 'frist'") as caught:
        open_run("frist", run.folder.parents[1])
    assert "Did you mean first?" in str(caught.value)
    with pytest.raises(NotFoundError, match="no repository at"):
        open_run("first", tmp_path / "nowhere")
    (tmp_path / ".regatta").mkdir()
    with pytest.raises(NotFoundError, match=r"The repository of that folder is .*/\.regatta"):
        open_run("first", tmp_path)


def test_a_run_without_its_sweep_can_be_read(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "runs" / "copy"
    copy.mkdir(parents=True)
    (copy / "journal.jsonl").write_bytes((run.folder / "journal.jsonl").read_bytes())
    opened = open_run("copy", tmp_path)
    assert opened.best is not None and run.best is not None
    assert opened.best == {**run.best, "version": None}  # a journal alone is in no catalog
    with pytest.raises(NotFoundError, match="came without its sweep"):
        opened.replay()


def test_the_default_mode_depends_on_the_name_of_the_metric(data: Dataset) -> None:
    modes = {"loss": "min", "train_loss": "min", "RMSE": "min", "accuracy": "max", "f1": "max"}
    for metric, mode in modes.items():
        made = Sweep(data, search.grid(**SPACE), model_fn, loss_fn=loss_fn, metric=metric)
        assert made.goal.mode == mode
    assert Sweep(data, search.grid(**SPACE), model_fn, loss_fn=loss_fn, metric="f1", mode="min").goal.mode == "min"


def test_the_repr_of_a_sweep(data: Dataset) -> None:
    made = Sweep(data, search.grid(**SPACE), model_fn, loss_fn=loss_fn, epochs=3)
    assert repr(made) == "<Sweep of 2 configurations on small, 3 epochs>"


def test_cpsat_is_refused_where_tensorflow_would_crash_it(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    monkeypatch.delitem(sys.modules, "ortools.sat.python.cp_model", raising=False)
    with pytest.raises(UsageError, match="imported TensorFlow before OR-Tools"):
        Sweep(data, search.grid(batch_size=[5]), model_fn, loss_fn=loss_fn, rule="cpsat")


def test_a_run_named_after_any_folder_can_be_opened(tmp_path: Path) -> None:
    made = small_data(tmp_path / "my data, ü")
    folder = Dataset.from_paths([part.path for part in made.train], [part.path for part in made.eval])
    run = launch(folder, tmp_path / "repo", search.configs([{"batch_size": 5}]))
    assert run.name == "my-data-ü-1"
    assert open_run(run.name, tmp_path / "repo").find({"batch_size": np.int64(5)}).status == "done"
    with pytest.raises(UsageError, match="name is 'a/b'"):
        Dataset.from_paths([part.path for part in made.train], name="a/b")


# -- where models come from ---------------------------------------------------------------------------------


def parents(repo: Path, version: str | None) -> list[tuple[str, str]]:
    with Repo.open(repo) as opened:
        assert version is not None
        links = opened.catalog.links([opened.resolve(version).key])
        return [(opened.catalog.of_id(link.base).name, link.kind) for link in links]


def test_versions_of_a_run_are_children_of_its_base(data: Dataset, tmp_path: Path) -> None:
    with Repo.at(tmp_path) as repo:
        first, second = (repo.commit(name, {"w": np.zeros(3, np.float32)}, git=False) for name in ("one", "two"))
    run = launch(data, tmp_path, base="one", name="single")
    assert [parents(tmp_path, run.version(config)) for config in run.record.configs] == [[("one", "trained")]] * 2
    assert run.record.header["base"] == {"": first.id}
    space = search.grid(model=["a", "b", "c"], batch_size=[5])
    several = launch(data, tmp_path, space, base={"a": first, "b": second.id[:12]}, name="several", resume=False)
    found = {c.values["model"]: parents(tmp_path, several.version(c.id)) for c in several.record.configs.values()}
    assert found == {"a": [("one", "trained")], "b": [("two", "trained")], "c": []}


def test_a_clone_is_a_child_of_its_parent_and_not_of_the_base(data: Dataset, tmp_path: Path) -> None:
    with Repo.at(tmp_path) as repo:
        repo.commit("one", {"w": np.zeros(3, np.float32)}, git=False)
    run = launch(data, tmp_path, search.grid(lr=[0.01], batch_size=[5]), base="one", name="run")
    run.clone({"lr": 0.01, "batch_size": 5}, {"lr": 0.02}, epochs=1)
    resumed = open_run("run", tmp_path).go_on(progress=False)
    clone = config_id({"lr": 0.02, "batch_size": 5})
    assert [kind for _, kind in parents(tmp_path, resumed.version(clone))] == ["clone"]


def test_a_base_that_is_not_there(data: Dataset, tmp_path: Path) -> None:
    with Repo.at(tmp_path) as repo:
        repo.commit("alexnet", {"w": np.zeros(3, np.float32)}, git=False)
    with pytest.raises(NotFoundError, match="Did you mean alexnet"):
        launch(data, tmp_path, base="alexnt")


def test_a_base_that_was_deleted_leaves_versions_without_a_parent(data: Dataset, tmp_path: Path) -> None:
    with Repo.at(tmp_path) as repo:
        version = repo.commit("one", {"w": np.zeros(3, np.float32)}, git=False)
    sweep = Sweep(
        data, search.grid(**SPACE), model_fn, loss_fn=loss_fn, cluster=Cluster.inline(1), repo=tmp_path, base=version
    )
    with Repo.open(tmp_path) as repo:
        repo.delete(version)
    run = sweep.launch(progress=False)
    assert [parents(tmp_path, run.version(config)) for config in run.record.configs] == [[], []]
