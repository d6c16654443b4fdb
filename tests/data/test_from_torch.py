"""Data sets from PyTorch's Datasets and DataLoaders."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data

import regatta
from regatta.data import Dataset, read_partition, torch_rows
from regatta.errors import ConflictError, DataError, UsageError

X = np.arange(120, dtype=np.float32).reshape(40, 3)
Y = np.arange(40)


class Rows(torch_data.Dataset[Any]):
    """Any function of a row's number as a Dataset; it notes what was read."""

    def __init__(self, row: Callable[[int], Any], count: int = 40) -> None:
        self.row, self.count, self.read = row, count, list[int]()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        self.read.append(number)
        return self.row(number)


class Stream(torch_data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(range(3))


class WithoutLength(torch_data.Dataset[Any]):
    def __getitem__(self, number: int) -> Any:
        return X[number]


def pair(number: int) -> tuple[torch.Tensor, int]:
    return torch.from_numpy(X[number]), int(Y[number])


def contents(data: Dataset) -> list[list[np.ndarray[Any, Any]]]:
    data.check()
    return [list(read_partition(part.path)) for part in data.train + data.eval]


def same(one: Dataset, other: Dataset) -> bool:
    parts = zip(contents(one), contents(other), strict=True)
    return one.columns == other.columns and all(
        np.array_equal(a, b) for left, right in parts for a, b in zip(left, right, strict=True)
    )


# --- rows


@pytest.mark.parametrize("options", [{}, {"eval_fraction": 0.5, "seed": 3}, {"proportions": [1, 2, 5]}])
@pytest.mark.parametrize("block", [1, 7, 256])
def test_rows_are_split_as_arrays_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], block: int
) -> None:
    monkeypatch.setattr(torch_rows, "BLOCK_ROWS", block)
    rows = Rows(pair)
    data = Dataset.from_torch(rows, partitions=3, directory=tmp_path / "rows", **options)
    assert rows.read == list(range(40)), "each row is read once, in order"
    assert same(data, Dataset.from_arrays(X, Y, partitions=3, directory=tmp_path / "arrays", **options))
    assert sorted(path.suffix for path in (tmp_path / "rows").iterdir()) == [".safetensors"] * 6


def test_a_test_set_is_used_as_it_is(tmp_path: Path) -> None:
    test = Rows(lambda i: (X[i] + 1, i), 7)
    data = Dataset.from_torch(Rows(pair), test, partitions=3, directory=tmp_path / "rows")
    known = Dataset.from_arrays(X, Y, partitions=3, eval=(X[:7] + 1, Y[:7]), directory=tmp_path / "arrays")
    assert same(data, known)
    assert [part.rows for part in data.eval] == [3, 2, 2]


@pytest.mark.parametrize(
    ("row", "names", "columns"),
    [
        (lambda i: torch.zeros(2), None, ["x: float32[2]"]),
        (lambda i: [np.uint8(i), True, 0.5], None, ["x: uint8", "y: bool", "2: float64"]),
        (lambda i: (torch.ones(1, 2, requires_grad=True), i), ["a", "b"], ["a: float32[1, 2]", "b: int64"]),
        (lambda i: {"b": i, "a": X[i]} if i % 2 else {"a": X[i], "b": i}, None, ["a: float32[3]", "b: int64"]),
        (lambda i: ([1, 2, i], np.float16(0)), None, ["x: int64[3]", "y: float16"]),
        (lambda i: (np.zeros((0, 2)), np.complex64(i)), None, ["x: float64[0, 2]", "y: complex64"]),
    ],
)  # fmt: skip
def test_rows_of_many_kinds(tmp_path: Path, row: Any, names: list[str] | None, columns: list[str]) -> None:
    data = Dataset.from_torch(Rows(row, 9), partitions=2, names=names, directory=tmp_path)
    data.check()
    assert list(map(str, data.columns)) == columns


def test_a_buffer_that_is_used_again_is_copied(tmp_path: Path) -> None:
    buffer = np.zeros(2, np.float32)

    def row(number: int) -> Any:
        buffer[:] = number
        return buffer

    data = Dataset.from_torch(Rows(row, 9), partitions=1, eval_fraction=0, directory=tmp_path)
    assert sorted(contents(data)[0][0][:, 0].tolist()) == list(range(9))


def test_few_rows_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_rows, "BLOCK_BYTES", 2**17)
    rows = Rows(lambda i: np.full(2**13, i, np.float32), 400)  # 12.5 MiB
    tracemalloc.start()
    try:
        data = Dataset.from_torch(rows, partitions=3, directory=tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**21
    assert sum(part.path.stat().st_size for part in data.train) > 9 * 2**20


def test_random_transforms_are_the_same_each_time(tmp_path: Path) -> None:
    def row(number: int) -> Any:
        return torch.rand(2), np.random.random()

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    data = [Dataset.from_torch(Rows(row), partitions=2, directory=tmp_path) for _ in range(2)]
    assert data[0].fingerprint == data[1].fingerprint
    assert torch.equal(torch.rand(1), expected), "the caller's random numbers go on where they were"


# --- DataLoaders and collate_fn


def test_a_data_loader_stands_for_its_dataset(tmp_path: Path) -> None:
    known = Dataset.from_torch(Rows(pair), partitions=3, directory=tmp_path)
    for options in ({}, {"shuffle": True, "batch_size": 7, "drop_last": True}):
        loader: Any = torch_data.DataLoader(Rows(pair), **options)
        assert Dataset.from_torch(loader, partitions=3, directory=tmp_path) == known


def pad(rows: list[Any]) -> dict[str, torch.Tensor]:
    ids = torch.zeros(len(rows), 8, dtype=torch.int64)
    for row, (text, _) in zip(ids, rows, strict=True):
        row[: len(text)] = torch.tensor(list(text.encode()))
    return {"ids": ids, "label": torch.tensor([label for _, label in rows])}


def test_collate_fn_makes_arrays_of_blocks_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_rows, "BLOCK_ROWS", 16)
    texts = Rows(lambda i: ("a" * (1 + i % 8), i))
    data = Dataset.from_torch(texts, partitions=2, collate_fn=pad, directory=tmp_path)
    assert texts.read == list(range(40))
    assert list(map(str, data.columns)) == ["ids: int64[8]", "label: int64"]
    for ids, labels in contents(data):
        assert ((ids > 0).sum(1) == 1 + labels % 8).all()
    loader: Any = torch_data.DataLoader(texts, collate_fn=pad)
    assert Dataset.from_torch(loader, partitions=2, directory=tmp_path) == data, "the loader's collate_fn is used"


# --- identity


def test_the_same_rows_find_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = Dataset.from_torch(Rows(pair), partitions=4, name="mine")
    (folder,) = (tmp_path / ".regatta" / "data").iterdir()
    assert folder.name == f"mine-{first.fingerprint[:12]}"
    before = [part.path.stat().st_ino for part in first.train + first.eval]
    assert Dataset.from_torch(Rows(pair), partitions=4, name="mine") == first
    assert [part.path.stat().st_ino for part in first.train + first.eval] == before
    os.truncate(first.train[1].path, 300)
    again = Dataset.from_torch(Rows(pair), partitions=4, name="mine")
    again.check()
    after = [part.path.stat().st_ino for part in first.train + first.eval]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, *[True] * 6]
    assert [each.name for each in folder.parent.iterdir()] == [folder.name], "no temporary files stay behind"


@pytest.mark.parametrize(
    "change",
    [
        {"partitions": 3},
        {"seed": 1},
        {"eval_fraction": 0.3},
        {"eval": Rows(pair, 8)},
        {"names": ["x", "z"]},
        {"train": Rows(lambda i: (X[i] + (i == 39), i))},
        {"train": Rows(lambda i: (X[i].astype(np.float64), i))},
        {"train": Rows(pair, 39)},
    ],
)
def test_other_rows_or_parameters_are_another_data_set(tmp_path: Path, change: dict[str, Any]) -> None:
    first = Dataset.from_torch(Rows(pair), partitions=4, directory=tmp_path)
    with pytest.raises(ConflictError, match="other data"):
        Dataset.from_torch(**{"train": Rows(pair), "partitions": 4, "directory": tmp_path, **change})
    first.check()
    assert len(list(tmp_path.iterdir())) == 8


def model_fn(config: dict[str, Any]) -> Any:
    net = torch.nn.Linear(3, 1)
    return net, torch.optim.SGD(net.parameters(), lr=config["lr"])


def loss_fn(model: Any, batch: Any, config: dict[str, Any]) -> Any:
    x, y = batch
    return torch.nn.functional.mse_loss(model(x / 120)[:, 0], y.float() / 40)


def test_a_run_is_resumed_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mse_loss, calls = torch.nn.functional.mse_loss, []

    def launch(rows: Any) -> regatta.Run:
        data = Dataset.from_torch(rows, partitions=2)
        space = regatta.search.grid(lr=[0.1, 0.01], batch_size=[8])
        cluster = regatta.Cluster.inline()
        return regatta.launch(data, space, model_fn, loss_fn=loss_fn, epochs=2, cluster=cluster, name="rows")

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 13:  # in the fourth of eight units
            raise KeyboardInterrupt
        return mse_loss(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch.nn.functional, "mse_loss", interrupted)
        launch(Rows(pair))
    run = launch(torch_data.DataLoader(Rows(pair), shuffle=True))
    assert [each.name for each in (tmp_path / ".regatta" / "runs").iterdir()] == ["rows"]
    events = [json.loads(line)["event"] for line in (run.folder / "journal.jsonl").read_text().splitlines()]
    assert events.count("resume") == 1
    assert run.replay().ok


# --- what cannot be used


def ragged(number: int) -> Any:
    return np.zeros(3 + (number == 33), np.float32), number


def loader(**options: Any) -> Any:
    return torch_data.DataLoader(Rows(pair), **options)


WEIGHTED = torch_data.WeightedRandomSampler([1.0] * 40, 40)
BATCHES = torch_data.BatchSampler(torch_data.SequentialSampler(range(40)), 4, False)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"train": Rows(ragged)}, "Row 33 of train is x: float32[4], y: int64; row 0 is x: float32[3], y: int64"),
    ({"train": Rows(lambda i: (X[i],) * (1 + (i == 5)))}, "Row 5 of train is x: float32[3], y: float32[3]; row 0"),
    ({"train": Rows(lambda i: {"a": i} if i else {"b": i})}, "Row 1 of train is a: int64; row 0 is b: int64"),
    ({"train": Rows(lambda i: {"a": i} if i else (i,))}, "Row 1 of train is a: int64; row 0 is x: int64"),
    ({"train": Rows(lambda i: i if i < 9 else 0.5)}, "Row 9 of train is x: float64; row 0 is x: int64"),
    ({"train": Rows(lambda i: (X[i], i)[: 2 - (i == 7)]), "names": ["a", "b"]}, "Row 7 of train is x: float32[3]; row"),
    ({"names": ["a"]}, "Row 0 of train cannot be used. The names are ['a']; 2 arrays"),
    ({"eval": Rows(ragged)}, "Row 33 of eval is x: float32[4], y: int64; row 0 of train is x: float32[3], y: int64"),
    ({"eval": Rows(lambda i: X[i])}, "Row 0 of eval is x: float32[3]; row 0 of train is x: float32[3], y: int64"),
    ({"train": Rows(lambda i: "text")}, "Row 0 of train cannot be used. 'x' is 'text'"),
    ({"train": Rows(lambda i: (i, None))}, "'y' is None"),
    ({"train": Rows(lambda i: ())}, "It holds no array"),
    ({"train": Rows(lambda i: (X[i], {"boxes": 1}))}, "'y' is {'boxes': 1}"),
    ({"train": Rows(lambda i: torch.zeros(2, dtype=torch.bfloat16))}, "BFloat16"),
    ({"train": Rows(lambda i: (np.zeros(2, np.complex128)))}, "'x' has the dtype complex128"),
    ({"train": Rows(lambda i: {1: 2})}, "The names are [1]"),
    ({"train": Stream()}, "train is an IterableDataset, a Stream"),
    ({"eval": torch_data.DataLoader(Stream())}, "eval is an IterableDataset, a Stream"),
    ({"train": WithoutLength()}, "which has no __len__"),
    ({"train": iter([1])}, "which has no __len__ and no __getitem__"),
    ({"train": (X, Y)}, "not a torch Dataset"),
    ({"train": X}, "train is a ndarray of shape (40, 3), not a torch Dataset"),
    ({"train": torch.zeros(9, 2)}, "train is a Tensor of shape (9, 2), not a torch Dataset"),
    ({"train": Rows(pair, 0)}, "train has no rows"),
    ({"eval": Rows(pair, 0)}, "eval has no rows"),
    ({"eval": Rows(pair), "eval_fraction": 0.1}, "eval_fraction is 0.1, but eval is given"),
    ({"train": loader(sampler=WEIGHTED)}, "its own sampler, a WeightedRandomSampler"),
    ({"train": loader(sampler=torch_data.RandomSampler(range(40), replacement=True))}, "its own sampler"),
    ({"train": loader(sampler=torch_data.SequentialSampler(range(9)))}, "its own sampler"),
    ({"train": loader(batch_sampler=BATCHES)}, "its own batch_sampler"),
    ({"train": loader(batch_size=None)}, "its batch_size is None"),
    ({"collate_fn": 3}, "collate_fn is 3"),
    ({"collate_fn": lambda rows: X[:3]}, "block of rows 0 to 39 of train has 'x', of shape (3, 3); it needs a row for"),
    ({"collate_fn": lambda rows: torch.tensor(1)}, "has 'x', a single value"),
    ({"collate_fn": lambda rows: "text"}, "block of rows 0 to 39 of train cannot be used. 'x' is 'text'"),
    ({"partitions": 0}, "partitions is 0"),
    ({"name": "../up"}, "'../up'"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_unusable_rows_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        Dataset.from_torch(**{"train": Rows(pair), "partitions": 4, "directory": tmp_path, **change})
    assert message in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_blocks_of_other_shapes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_rows, "BLOCK_ROWS", 16)
    with pytest.raises(DataError) as error:
        Dataset.from_torch(
            Rows(pair), partitions=2, collate_fn=lambda rows: np.zeros((len(rows), rows[-1][1])), directory=tmp_path
        )
    assert "block of rows 16 to 31 of train is x: float64[31]; row 0 is x: float64[15]" in str(error.value)


def test_files_have_their_names_when_all_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_rows, "BLOCK_ROWS", 1)
    seen: list[list[str]] = []

    def row(number: int) -> Any:
        seen.append([path.name[0] for path in tmp_path.rglob("*")])
        return pair(number)

    Dataset.from_torch(Rows(row), partitions=2, eval_fraction=0, directory=tmp_path)
    assert seen[1:] == [[".", ".", "."]] * 39, "a folder and two files, which backups leave out"


def test_errors_of_the_dataset_are_its_own(tmp_path: Path) -> None:
    def row(number: int) -> Any:
        return pair(number) if number < 20 else Path(tmp_path / "lost.png").read_bytes()

    with pytest.raises(FileNotFoundError, match="lost"):
        Dataset.from_torch(Rows(row), partitions=2, directory=tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
