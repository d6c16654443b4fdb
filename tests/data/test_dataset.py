from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from regatta.data import Column, Dataset, read_partition
from regatta.data.partition import Partition
from regatta.errors import ConflictError, DataError, UsageError

Rows = npt.NDArray[Any]


def arrays(rows: int = 40) -> tuple[Rows, Rows]:
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), np.arange(rows)


def column(parts: tuple[Partition, ...], index: int) -> Rows:
    return np.concatenate([read_partition(part.path)[index] for part in parts])


@pytest.fixture
def made(tmp_path: Path) -> Dataset:
    return Dataset.from_arrays(*arrays(), partitions=4, directory=tmp_path / "made")


# --- from arrays


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(10, 200),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=5),
    st.floats(0, 0.5),
    st.integers(0, 2**32),
)
def test_every_row_is_complete_in_exactly_one_partition(
    tmp_path_factory: pytest.TempPathFactory, rows: int, proportions: list[float], fraction: float, seed: int
) -> None:
    x, y = arrays(rows)
    data = Dataset.from_arrays(
        x, y, partitions=len(proportions), proportions=proportions, eval_fraction=fraction, seed=seed,
        directory=tmp_path_factory.mktemp("data"),
    )  # fmt: skip
    data.check()
    labels = column(data.train + data.eval, 1)
    assert sorted(labels) == list(range(rows))
    assert np.array_equal(column(data.train + data.eval, 0), x[labels]), "a row's columns stay together"
    assert [part.rows for part in data.train] == [len(read_partition(part.path)[1]) for part in data.train]


def test_partitions_are_readable_by_the_safetensors_library(made: Dataset) -> None:
    assert [part.rows for part in made.train] == [8, 8, 8, 8]
    assert [part.rows for part in made.eval] == [2, 2, 2, 2]
    assert made.columns == (Column("x", "float32", (3,)), Column("y", "int64", ()))
    loaded = load_file(made.train[0].path)
    x, y = read_partition(made.train[0].path)
    assert np.array_equal(loaded["x"], x) and np.array_equal(loaded["y"], y)
    assert made.train[0].path.stat().st_mode & 0o777 == 0o644


def test_the_shuffle_follows_the_seed(tmp_path: Path) -> None:
    def order(seed: int, folder: str) -> list[int]:
        data = Dataset.from_arrays(*arrays(), partitions=2, seed=seed, directory=tmp_path / folder)
        return [int(label) for label in column(data.train, 1)]

    assert order(1, "a") == order(1, "b") != order(2, "c")
    assert order(1, "d") != sorted(order(1, "e"))


def test_columns_may_be_more_than_two_and_have_names(tmp_path: Path) -> None:
    x, y = arrays(10)
    more = [np.ones((10, 2, 2), bool), np.arange(10.0)]
    data = Dataset.from_arrays(x, y, *more, partitions=2, directory=tmp_path / "a")
    assert [c.name for c in data.columns] == ["x", "y", "2", "3"]
    assert [a.shape[1:] for a in read_partition(data.train[0].path)] == [(3,), (), (2, 2), ()]
    named = Dataset.from_arrays(x, y, partitions=2, names=["text", "label"], directory=tmp_path / "b")
    assert [c.name for c in named.columns] == ["text", "label"]
    assert read_partition(named.train[0].path)[0].shape == (4, 3), "the order given, not that of the names or the file"


def test_anything_that_converts_to_an_array_is_accepted(tmp_path: Path) -> None:
    import torch

    tensor = torch.arange(20.0).reshape(10, 2)
    swapped = np.arange(10, dtype=">i4")
    sliced = np.arange(40).reshape(10, 4)[:, ::2]
    data = Dataset.from_arrays(tensor, list(range(10)), swapped, sliced, partitions=1, directory=tmp_path)
    x, y, swapped_back, sliced_back = (
        np.concatenate(pair) for pair in zip(*(read_partition(p.path) for p in data.train + data.eval), strict=True)
    )
    assert np.array_equal(x, tensor.numpy()[y])
    assert swapped_back.dtype == np.dtype("=i4") and np.array_equal(swapped_back, swapped[y])
    assert np.array_equal(sliced_back, sliced[y])


def test_digits(tmp_path: Path) -> None:
    data = Dataset.digits(partitions=3, directory=tmp_path)
    data.check()
    assert data.name == "digits"
    x, y = column(data.train + data.eval, 0), column(data.train + data.eval, 1)
    assert x.shape == (1797, 64) and x.dtype == np.float32 and (x.min(), x.max()) == (0, 1)
    assert y.dtype == np.int64 and set(y) == set(range(10))
    assert sum(part.rows or 0 for part in data.eval) == 359


# --- where the files lie, and that they are written once


def test_a_test_split_is_used_as_it_is(tmp_path: Path) -> None:
    (x, y), (xt, yt) = arrays(), (np.full((10, 3), 7, np.float32), np.arange(10))
    data = Dataset.from_arrays(x, y, partitions=4, eval=(xt, yt), seed=3, directory=tmp_path)
    data.check()
    assert [part.rows for part in data.train] == [10] * 4, "no row is drawn"
    assert [part.rows for part in data.eval] == [3, 3, 2, 2]
    assert np.array_equal(column(data.eval, 0), xt) and np.array_equal(column(data.eval, 1), yt)
    alone = Dataset.from_arrays(x, y, partitions=4, eval_fraction=0, seed=3, directory=tmp_path / "alone")
    assert np.array_equal(column(data.train, 1), column(alone.train, 1))
    fewer = Dataset.from_arrays(x, y, partitions=4, eval=(xt[:2], yt[:2]), directory=tmp_path / "fewer")
    assert [part.rows for part in fewer.eval] == [1, 1]
    one = Dataset.from_arrays(
        x, y, partitions=4, eval=[xt, yt], eval_partitions=1, eval_fraction=0, directory=tmp_path / "one"
    )
    assert [part.rows for part in one.eval] == [10]


def test_another_test_split_is_another_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (x, y), (xt, yt) = arrays(), arrays(10)
    first = Dataset.from_arrays(x, y, partitions=2, eval=(xt, yt))
    before = inodes(first)
    assert Dataset.from_arrays(x, y, partitions=2, eval={"y": yt, "x": xt}) == first
    assert inodes(first) == before
    others = [
        Dataset.from_arrays(x, y, partitions=2, eval=(xt, yt + 1)),
        Dataset.from_arrays(x, y, partitions=2, eval=(xt, yt), eval_partitions=1),
        Dataset.from_arrays(x, y, partitions=2, eval_fraction=0),
    ]
    assert len({data.fingerprint for data in (first, *others)}) == 4


def test_arrays_in_a_dict_keep_their_names(tmp_path: Path) -> None:
    x, y = arrays()
    inputs = {"ids": x, "mask": x > 3}
    held_out = ({name: array[:5] for name, array in inputs.items()}, y[:5])
    data = Dataset.from_arrays(inputs, y, partitions=2, eval=held_out, directory=tmp_path)
    assert [column.name for column in data.columns] == ["ids", "mask", "y"]
    assert np.array_equal(column(data.train, 0) > 3, column(data.train, 1))
    assert np.array_equal(column(data.eval, 0), x[:5])
    with pytest.raises(DataError, match="different ones"):
        Dataset.from_arrays({"y": x}, y, partitions=2, directory=tmp_path)
    with pytest.raises(DataError, match="non-empty"):
        Dataset.from_arrays({3: x}, y, partitions=2, directory=tmp_path)  # type: ignore[dict-item]


def inodes(data: Dataset) -> list[int]:
    return [part.path.stat().st_ino for part in data.train + data.eval]


def test_files_are_in_the_repository_and_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = Dataset.from_arrays(*arrays(), partitions=4, name="mine")
    (folder,) = (tmp_path / ".regatta" / "data").iterdir()
    assert folder.name == f"mine-{first.fingerprint[:12]}"
    assert {part.path.parent for part in first.train} == {folder}
    before = inodes(first)
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert Dataset.from_arrays(*arrays(), partitions=4, name="mine") == first
    assert inodes(first) == before
    assert len(list(folder.iterdir())) == 8, "no temporary files stay behind"


@pytest.mark.parametrize(
    "change",
    [
        {"partitions": 3},
        {"seed": 1},
        {"eval_fraction": 0.25},
        {"eval_partitions": 2},
        {"proportions": [1, 1, 1, 2]},
        {"names": ["x", "z"]},
        {"x": arrays()[0] + 1},
        {"x": arrays()[0].astype(np.float64)},
        {"x": arrays()[0].reshape(40, 3, 1)},
    ],
    ids=lambda change: str(next(iter(change))),
)
def test_other_data_or_parameters_are_another_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = arrays()
    first = Dataset.from_arrays(x, y, partitions=4)
    other = Dataset.from_arrays(**{"x": x, "y": y, "partitions": 4, **change})
    assert other.fingerprint != first.fingerprint
    assert other.train[0].path.parent != first.train[0].path.parent
    first.check()
    folder = first.train[0].path.parent
    with pytest.raises(ConflictError, match="other data") as error:
        Dataset.from_arrays(**{"x": x, "y": y, "partitions": 4, "directory": folder, **change})
    assert error.value.exit_code == 4
    first.check()


def test_files_that_are_not_ours_are_never_overwritten(tmp_path: Path) -> None:
    save_file({"x": np.zeros(3)}, tmp_path / "train-0000.safetensors")
    before = (tmp_path / "train-0000.safetensors").read_bytes()
    with pytest.raises(ConflictError):
        Dataset.from_arrays(*arrays(), partitions=2, directory=tmp_path)
    assert (tmp_path / "train-0000.safetensors").read_bytes() == before


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_missing_and_cut_off_files_are_written_again(made: Dataset, keep: int) -> None:
    path = made.train[1].path
    whole, others = path.read_bytes(), inodes(made)
    path.write_bytes(whole[:keep])
    made.eval[0].path.unlink()
    with pytest.raises(DataError):
        made.check()
    again = Dataset.from_arrays(*arrays(), partitions=4, directory=path.parent)
    again.check()
    assert path.read_bytes() == whole
    assert inodes(again)[2:4] == others[2:4], "whole files are left alone"


WRITER = """
import sys, numpy as np
from regatta.data import Dataset
x = np.random.default_rng(0).random((20000, 16))
sys.stdin.readline()
data = Dataset.from_arrays(x, np.arange(20000), partitions=8, directory=sys.argv[1])
data.check()
print(data.fingerprint)
"""


def test_several_processes_write_the_same_data_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    answers = {writer.communicate(timeout=300)[0].strip() for writer in writers}
    assert [writer.returncode for writer in writers] == [0] * 4
    assert len(answers) == 1
    data = Dataset.from_paths(sorted(tmp_path.glob("train*")), sorted(tmp_path.glob("eval*")))
    assert sorted(column(data.train + data.eval, 1)) == list(range(20000))
    assert len(list(tmp_path.iterdir())) == 16


KILLED = """
import os, sys, numpy as np
import regatta.data.write as write
replace, count = os.replace, 0
def dies(source, target):
    global count
    count += 1
    if count == 3: os._exit(9)
    replace(source, target)
os.replace = dies
from regatta.data import Dataset
Dataset.from_arrays(np.zeros((40, 3), np.float32), np.arange(40), partitions=4, directory=sys.argv[1])
"""


def test_a_killed_writer_leaves_no_partial_file(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)]).returncode == 9
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == [f"train-000{j}.safetensors" for j in range(2)]
    data = Dataset.from_arrays(np.zeros((40, 3), np.float32), np.arange(40), partitions=4, directory=tmp_path)
    data.check()
    assert sorted(column(data.train + data.eval, 1)) == list(range(40))


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="data folder cannot be written"):
        Dataset.from_arrays(*arrays(), partitions=2, directory=tmp_path / "file" / "data")


@pytest.mark.parametrize(
    "made", ["from_arrays(np.zeros((10000, 8)), np.zeros(10000),", "from_torch([np.zeros(8)] * 10000,"]
)
def test_a_full_disk_is_an_error(made: str, tmp_path: Path) -> None:
    """Files larger than a limit that the process sets itself cannot be written, just as on a full disk."""
    code = (
        "import resource, signal, sys, numpy as np\n"
        "from regatta.data import Dataset\nfrom regatta.errors import DataError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        f"try: Dataset.{made} partitions=2, directory=sys.argv[1])\n"
        "except DataError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "could not be written" in result.stdout
    assert list(tmp_path.iterdir()) == []


# --- bad arguments


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partitions": 0}, "partitions is 0"),
        ({"partitions": -1}, "partitions is -1"),
        ({"partitions": 2.5}, "partitions is 2.5"),
        ({"partitions": 33}, "32 training rows for 33 partitions"),
        ({"seed": -1}, "seed is -1"),
        ({"eval_fraction": 1.0}, "eval_fraction is 1.0"),
        ({"proportions": [1, 2, 3]}, "3 numbers for 4 partitions"),
        ({"proportions": [1, 2, 3, -4]}, "greater than 0"),
        ({"proportions": [0, 0, 0, 0]}, "greater than 0"),
        ({"x": np.zeros((39, 3))}, "different numbers of rows: {'x': 39, 'y': 40}"),
        ({"x": np.zeros((0, 3)), "y": []}, "no rows"),
        ({"x": {}, "y": {}}, "There is no array"),
        ({"eval": {}}, "eval cannot be used. There is no array"),
        ({"eval": arrays(), "eval_fraction": 0.5}, "eval_fraction is 0.5, but eval is given as well"),
        ({"eval": arrays(), "eval_partitions": 0}, "number of evaluation partitions is 0"),
        ({"eval": arrays(0)}, "eval has no rows"),
        ({"eval": arrays()[0]}, "eval is a ndarray of shape (40, 3)"),
        ({"eval": arrays()[:1]}, "eval has the arrays ['x']; the training data has ['x', 'y']"),
        ({"eval": {"x": arrays()[0], "z": arrays()[1]}}, "eval has the arrays ['x', 'z']"),
        ({"eval": (arrays()[0], arrays(39)[1])}, "eval cannot be used. The arrays have different numbers of rows"),
        (
            {"eval": (np.zeros((9, 4), "f4"), np.arange(9))},
            "A row of eval is x: float32[4]; a row of the training data",
        ),
        ({"eval": (np.zeros((9, 3)), np.arange(9))}, "A row of eval is x: float64[3]; a row of the training data"),
        ({"x": 3.0}, "'x' is a single value"),
        ({"x": [[1, 2], [3]]}, "not an array"),
        ({"x": ["word"] * 40}, "'x' has the dtype <U4"),
        ({"x": [object()] * 40}, "'x' has the dtype object"),
        ({"x": np.zeros((40, 3), np.complex128)}, "'x' has the dtype complex128"),
        ({"names": ["x"]}, "2 arrays need as many"),
        ({"names": ["x", "x"]}, "different ones"),
        ({"names": ["x", ""]}, "non-empty"),
        ({"names": ["x", "__metadata__"]}, "non-empty"),
        ({"name": "../up"}, "'../up'"),
        ({"name": ""}, "''"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    x, y = arrays()
    with pytest.raises(UsageError) as error:
        Dataset.from_arrays(**{"x": x, "y": y, "partitions": 4, "directory": tmp_path / "new", **change})
    assert message in str(error.value)
    assert not (tmp_path / "new").exists(), "nothing is written for a data set that cannot be"


# --- from paths


def savez(path: Path, rows: int = 5, **columns: Rows) -> Path:
    np.savez(path, **(columns or {"x": np.zeros((rows, 3), np.float32), "y": np.zeros(rows, np.int64)}))
    return path


def test_paths_may_have_several_formats(tmp_path: Path, made: Dataset) -> None:
    other = savez(tmp_path / "other.npz")
    data = Dataset.from_paths([made.train[0].path, other], [str(made.eval[0].path)], name="mixed")
    data.check()
    assert [part.rows for part in data.train] == [8, 5]
    assert data.describe()["name"] == "mixed"
    assert Dataset.from_paths([other]).name == tmp_path.name


def test_files_that_only_an_input_fn_can_read_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").write_bytes(b"1")
    data = Dataset.from_paths([tmp_path / "a.csv", tmp_path / "images"])
    assert [part.rows for part in data.train] == [None, None]
    data.check(input_fn=True)
    with pytest.raises(DataError, match=r"suffix '\.csv'"):
        data.check()
    assert json.loads(json.dumps(data.describe()))["columns"] == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": np.zeros((5, 3), np.float32)}, "5 rows of 1 columns"),
        ({"x": np.zeros((5, 3), np.float32), "y": np.zeros(5, np.int64), "z": np.zeros(5)}, "5 rows of 3 columns"),
        ({"x": np.zeros((5, 4), np.float32), "y": np.zeros(5, np.int64)}, "x: float32[4]"),
        ({"x": np.zeros((5, 3), np.float64), "y": np.zeros(5, np.int64)}, "x: float64[3]"),
        ({"x": np.zeros((5, 3), np.float32), "label": np.zeros(5, np.int64)}, "label: int64"),
    ],
)
@pytest.mark.parametrize("place", ["train", "eval"])
def test_a_partition_with_other_columns_is_refused(
    tmp_path: Path, columns: dict[str, Rows], message: str, place: str
) -> None:
    good, bad = savez(tmp_path / "good.npz"), savez(tmp_path / "bad.npz", **columns)
    with pytest.raises(DataError) as error:
        Dataset.from_paths([good, bad] if place == "train" else [good], [bad] if place == "eval" else [])
    assert error.value.place == str(bad)
    assert message in str(error.value) and "good.npz has 5 rows of 2 columns" in str(error.value)


def test_invalid_lists_of_paths_are_refused(tmp_path: Path) -> None:
    path = savez(tmp_path / "a.npz")
    with pytest.raises(DataError, match="list of paths is empty"):
        Dataset.from_paths([])
    with pytest.raises(UsageError, match=r"give a list of paths.*\n.*train=sorted\(glob.glob\(.*a.npz'\)\)"):
        Dataset.from_paths(str(path))
    with pytest.raises(UsageError, match=r"sorted\(glob.glob\('.*/\*.npz'\)\)"):
        Dataset.from_paths(str(tmp_path))
    with pytest.raises(DataError, match="more than once"):
        Dataset.from_paths([path, tmp_path / "." / "a.npz"])
    with pytest.raises(DataError, match="does not exist"):
        Dataset.from_paths([path, tmp_path / "b.npz"])


def test_check_reads_the_files_again(tmp_path: Path) -> None:
    path = savez(tmp_path / "a.npz")
    data = Dataset.from_paths([path])
    data.check()
    savez(path, rows=6)
    with pytest.raises(DataError, match=r"it had 5 rows of 2 columns.*now has 6 rows"):
        data.check()
    path.unlink()
    with pytest.raises(DataError, match="does not exist"):
        data.check()


def test_check_detects_the_file_of_another_data_set(tmp_path: Path, made: Dataset) -> None:
    other = Dataset.from_arrays(*arrays(), partitions=4, seed=1, directory=tmp_path / "other")
    os.replace(other.train[2].path, made.train[2].path)
    with pytest.raises(ConflictError, match="belongs to other data"):
        made.check()


def test_a_data_set_without_training_partitions_is_refused() -> None:
    with pytest.raises(DataError, match="no training partitions"):
        Dataset("empty", ()).check()


# --- what it is


def test_the_fingerprint_depends_on_content_not_on_location(tmp_path: Path) -> None:
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append([savez(tmp_path / folder / f"{j}.npz", rows=5 + j) for j in range(2)])
    first, second = (Dataset.from_paths(found) for found in paths)
    assert first.fingerprint == second.fingerprint
    assert Dataset.from_paths(paths[0][::-1]).fingerprint != first.fingerprint
    assert Dataset.from_paths(paths[0][:1], paths[0][1:]).fingerprint != first.fingerprint
    savez(paths[1][0], x=np.ones((5, 3), np.float32), y=np.zeros(5, np.int64))
    assert Dataset.from_paths(paths[1]).fingerprint != first.fingerprint
    assert pickle.loads(pickle.dumps(second)).fingerprint != first.fingerprint, "it is of the files as they are now"


def test_the_fingerprint_of_a_folder_depends_on_names_and_sizes(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "1.png").write_bytes(b"1")
    before = Dataset.from_paths([folder]).fingerprint
    assert Dataset.from_paths([folder]).fingerprint == before
    (folder / "2.png").write_bytes(b"1")
    assert Dataset.from_paths([folder]).fingerprint != before


def test_the_name_and_the_folder_do_not_change_the_fingerprint(tmp_path: Path) -> None:
    one = Dataset.from_arrays(*arrays(), partitions=2, name="one", directory=tmp_path / "1")
    other = Dataset.from_arrays(*arrays(), partitions=2, name="other", directory=tmp_path / "2")
    assert one.fingerprint == other.fingerprint


def test_the_description_is_plain(made: Dataset) -> None:
    description = made.describe()
    assert json.loads(json.dumps(description)) == description
    assert description["train"][0] == {"path": str(made.train[0].path), "rows": 8}
    assert description["columns"] == [
        {"name": "x", "dtype": "float32", "shape": [3]},
        {"name": "y", "dtype": "int64", "shape": []},
    ]
    assert os.path.isabs(description["eval"][3]["path"])


def test_a_data_set_can_be_pickled(made: Dataset) -> None:
    assert pickle.loads(pickle.dumps(made)) == made


def test_data_needs_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np\nfrom regatta.data import Dataset, read_partition\n"
        "data = Dataset.from_arrays(np.zeros((9, 2)), np.zeros(9), partitions=2, directory=sys.argv[1])\n"
        "read_partition(data.train[0].path)\n"
        "rows = [(np.zeros(2), 1)] * 9\n"
        "Dataset.from_torch(rows, partitions=2, directory=sys.argv[1] + '/rows')\n"
        "print([m for m in ('torch', 'sklearn', 'pyarrow', 'regatta.engine') if m in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
