"""One partition in each format: round trips, and every way in which a file can be wrong."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from regatta.data import Column, read_partition
from regatta.data.partition import inspect
from regatta.errors import DataError, MissingExtraError

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.arange(6)


def write_safetensors(path: Path) -> None:
    save_file({"x": X, "y": Y}, path)


def write_npz(path: Path) -> None:
    np.savez(path, x=X, y=Y)


def write_compressed(path: Path) -> None:
    np.savez_compressed(path, x=X, y=Y)


def write_parquet(path: Path) -> None:
    pq.write_table(pa.table({"x": list(X), "y": Y}), path)


WRITERS = {
    "a.safetensors": write_safetensors,
    "a.npz": write_npz,
    "b.npz": write_compressed,
    "a.parquet": write_parquet,
}


@pytest.fixture(params=WRITERS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found: Path = tmp_path / request.param
    WRITERS[request.param](found)
    return found


def refused(path: Path, *messages: str) -> None:
    """Both verbs raise DataError, which names the file and says this."""
    for verb in (inspect, read_partition):
        with pytest.raises(DataError) as error:
            verb(path)
        assert error.value.place == str(path)
        assert all(message in str(error.value) for message in messages), str(error.value)


def test_round_trip(path: Path) -> None:
    partition = inspect(path)
    assert (partition.path, partition.rows) == (path, 6)
    assert partition.columns == (Column("x", "float32", (2,)), Column("y", "int64", ()))
    x, y = read_partition(path)
    assert x.dtype == X.dtype and np.array_equal(x, X)
    assert y.dtype == Y.dtype and np.array_equal(y, Y)
    assert x.flags.aligned and y.flags.aligned


def test_a_truncated_file_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError):
            inspect(path)


def test_a_damaged_file_is_read_or_refused_without_a_crash(path: Path) -> None:
    whole = path.read_bytes()
    for position in range(0, len(whole), 3):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[position] ^= flip
            path.write_bytes(damaged)
            try:
                assert all(isinstance(array, np.ndarray) for array in read_partition(path))
            except DataError as error:
                assert error.place == str(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.sampled_from([".safetensors", ".npz", ".parquet"]))
def test_random_bytes_are_refused(tmp_path: Path, noise: bytes, suffix: str) -> None:
    file = tmp_path / f"noise{suffix}"
    file.write_bytes(noise)
    with pytest.raises(DataError):
        read_partition(file)


def test_missing_files_folders_and_unknown_suffixes_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.npz", "does not exist")
    (tmp_path / "folder.npz").mkdir()
    refused(tmp_path / "folder.npz", "cannot be read")
    (tmp_path / "a.csv").write_text("1,2\n")
    assert inspect(tmp_path / "a.csv").rows is None
    with pytest.raises(DataError, match=r"suffix '\.csv'") as error:
        read_partition(tmp_path / "a.csv")
    assert "input_fn" in str(error.value)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, "different lengths: {'x': 3, 'y': 4}"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "no rows"),
        ({"x": np.zeros((3, 2)), "y": np.float64(1)}, "'y' is a single value"),
        ({}, "no columns"),
    ],
)
def test_inconsistent_columns_are_refused(tmp_path: Path, suffix: str, columns: dict[str, Any], message: str) -> None:
    file = tmp_path / f"a{suffix}"
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    save_file(arrays, file) if suffix == ".safetensors" else np.savez(file, **arrays)
    refused(file, message)


# --- safetensors


def raw_safetensors(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def tensor(dtype: object, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"x": tensor("F32", [2], 0, 8)}, bytes(7), "it is cut off"),
        ({"x": tensor("F32", [2], 0, 8)}, bytes(9), "something follows the data"),
        ({"x": tensor("F32", [3], 0, 8)}, bytes(8), "does not take 8 bytes"),
        ({"x": tensor("F32", [2**62, 4], 0, 8)}, bytes(8), "does not take 8 bytes"),
        ({"x": tensor("F32", [2**70], 0, 2**72)}, bytes(8), "it is cut off"),
        ({"x": tensor("F32", [-2], 0, -8)}, bytes(8), "not a whole number"),
        ({"x": tensor("F32", [2.0], 0, 8)}, bytes(8), "not a whole number"),
        ({"x": tensor("F32", [True], 0, 4)}, bytes(4), "not a whole number"),
        ({"x": tensor("F32", [2], 8, 16)}, bytes(16), "starts at byte"),
        ({"x": tensor("F32", [2], 0, 8), "y": tensor("F32", [2], 0, 8)}, bytes(8), "starts at byte"),
        ({"x": tensor("F32", [2], 0, 8), "y": tensor("F32", [2], 4, 12)}, bytes(12), "starts at byte"),
        ({"x": tensor("BF16", [2], 0, 4)}, bytes(4), "'BF16', which NumPy does not have"),
        ({"x": tensor("F32", "2", 0, 8)}, bytes(8), "not a whole number"),
        ({"x": {"dtype": "F32", "shape": [2]}}, bytes(8), "not that of a tensor"),
        ({"x": 3}, bytes(8), "not that of a tensor"),
        ({"x": tensor(["F32"], [2], 0, 8)}, bytes(8), "which is not a text"),
        ([], b"", "not a JSON object"),
        (b"{", b"", "not JSON"),
        (b"\xff\xfe", b"", "not JSON"),
        (b"[" * 5000, b"", "not JSON"),
        ({"__metadata__": {"regatta": "nonsense"}, "x": tensor("U8", [1], 0, 1)}, b"1", "is not JSON"),
        ({"__metadata__": {"regatta": 3}, "x": tensor("U8", [1], 0, 1)}, b"1", "is not JSON"),
        ({"__metadata__": {"regatta": "3"}, "x": tensor("U8", [1], 0, 1)}, b"1", "not a JSON object"),
        ({"__metadata__": {"regatta": '{"columns":["z"]}'}, "x": tensor("U8", [1], 0, 1)}, b"1", "but they are ['x']"),
        ({"__metadata__": {"regatta": '{"columns":[1]}'}, "1": tensor("U8", [1], 0, 1)}, b"1", "but they are ['1']"),
        ({"__metadata__": {"regatta": '{"columns":[[1]]}'}, "x": tensor("U8", [1], 0, 1)}, b"1", "but they are ['x']"),
    ],
)
def test_hostile_safetensors_are_refused(tmp_path: Path, header: object, data: bytes, message: str) -> None:
    refused(raw_safetensors(tmp_path / "a.safetensors", header, data), message)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**12, 100])
def test_a_huge_header_takes_no_memory(tmp_path: Path, length: int) -> None:
    file = raw_safetensors(tmp_path / "a.safetensors", {}, length=length)
    tracemalloc.start()
    try:
        refused(file, f"should have {length} bytes")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_header_beyond_the_limit_of_the_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    with open(file, "wb") as opened:
        opened.write(struct.pack("<Q", 200_000_000))
        opened.truncate(300_000_000)  # sparse: takes no room on the disk
    refused(file, "more than the 100000000 allowed")


def test_columns_without_a_recorded_order_are_sorted(tmp_path: Path) -> None:
    """Other writers sort by the size of the type. Still, x and y come first, then the others by name or number."""
    names = ["y", "10", "x", "2", "extra"]
    file = tmp_path / "a.safetensors"
    save_file({name: np.full(3, i, np.int64 if i % 2 else np.int8) for i, name in enumerate(names)}, file)
    assert [c.name for c in inspect(file).columns] == ["x", "y", "2", "10", "extra"]
    assert [a[0] for a in read_partition(file)] == [2, 0, 3, 1, 4]


def test_safetensors_are_mapped_and_cannot_be_written_to(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"x": np.zeros((1_000_000, 8), np.float32)}, file)
    tracemalloc.start()
    try:
        (x,) = read_partition(file)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match="read-only"):
        x[0, 0] = 1


def test_misaligned_safetensors_are_copied(tmp_path: Path) -> None:
    header = {"a": tensor("U8", [1], 0, 1), "b": tensor("F64", [1], 1, 9)}
    file = raw_safetensors(tmp_path / "a.safetensors", header, b"\x01" + struct.pack("<d", 0.5))
    a, b = read_partition(file)
    assert (a[0], b[0]) == (1, 0.5)
    assert b.flags.aligned


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"])
def test_every_type_that_safetensors_and_numpy_share(tmp_path: Path, dtype: str) -> None:
    values = np.array([[0, 1], [1, 0]], dtype)
    save_file({"x": values}, tmp_path / "a.safetensors")
    (x,) = read_partition(tmp_path / "a.safetensors")
    assert x.dtype == values.dtype and np.array_equal(x, values)
    assert inspect(tmp_path / "a.safetensors").columns[0].dtype == values.dtype.name


# --- npz


class Trap:
    """Tells when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("it was unpickled",)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, x=np.array([Trap(), Trap()], dtype=object), y=np.zeros(2))
    refused(file, "'x'", "are not read")
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|O", "fortran_order": False, "shape": (2,)})
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", buffer.getvalue() + pickle.dumps([Trap(), Trap()]))
    refused(file, "are not read")


def npy(shape: object, descr: str = "<f4", data: bytes = b"", header: bytes | None = None) -> bytes:
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() if header is None else header
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text + b"\n" + data


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (npy((2**40,), data=bytes(8)), "should have"),
        (npy((2**62, 2**62), data=bytes(8)), "should have"),
        (npy((3,), data=bytes(8)), "should have"),
        (npy((1,), data=bytes(8)), "should have"),
        (npy((-2, -1), data=bytes(8)), "shape (-2, -1)"),
        (npy((True,), data=bytes(4)), "shape (True,)"),
        (npy("x"), "cannot be read"),
        (npy((1,), header=b"{" * 20), "cannot be read"),
        (npy((1,), header=b" " * 20_000), "cannot be read"),
        (npy((2,), descr="<U0"), "'x'"),
        (npy((2,), descr="|V4", data=bytes(8)), "'x'"),
        (b"\x93NUMPY\x09\x00" + bytes(20), "cannot be read"),
        (b"not an array", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_hostile_npz_members_are_refused(tmp_path: Path, member: bytes, message: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", member)
    refused(tmp_path / "a.npz", message)


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    """A member of 64 bytes claims to unpack to a tebibyte."""
    file = tmp_path / "a.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy((2**38,), data=bytes(1000)))
    whole, size = file.read_bytes(), len(npy((2**38,), data=bytes(1000)))
    claimed = struct.pack("<I", 2**32 - 2)
    file.write_bytes(whole.replace(struct.pack("<I", size), claimed))
    refused(file, "claims 4294967294 bytes")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_is_refused(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("x.npy", npy((2,), data=bytes(8)))
    refused(tmp_path / "a.npz", "has a compression that")


def test_members_that_are_not_arrays_or_appear_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(tmp_path / "a.npz", "'readme.txt' is not an array")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x.npy", npy((2,), data=bytes(8)))
        archive.writestr("x.npy", npy((2,), data=bytes(8)))
    refused(tmp_path / "a.npz", "same name")


def test_a_stream_that_ends_early_is_refused_despite_its_checksum(tmp_path: Path) -> None:
    file, short, long = tmp_path / "a.npz", npy((2,), data=bytes(4)), npy((2,), data=bytes(8))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", long)
    whole = file.read_bytes()
    packed = [zlib.compress(data, 6, wbits=-15) for data in (short, long)]
    assert len(packed[0]) <= len(packed[1]) and packed[1] in whole
    padded = packed[0].ljust(len(packed[1]), b"\0")
    whole = whole.replace(packed[1], padded).replace(*(struct.pack("<I", zlib.crc32(d)) for d in (long, short)))
    file.write_bytes(whole)
    with pytest.raises(DataError):
        read_partition(file)


def test_npz_keeps_order_texts_and_fortran_arrays(tmp_path: Path) -> None:
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.savez(tmp_path / "a.npz", words=np.array(["a", "bcd"]), f=fortran, b=np.array([1, 2], ">i4"))
    assert [str(c) for c in inspect(tmp_path / "a.npz").columns] == ["words: str", "f: int64[3]", "b: int32"]
    words, f, b = read_partition(tmp_path / "a.npz")
    assert words.tolist() == ["a", "bcd"] and np.array_equal(f, fortran) and b.tolist() == [1, 2]


# --- Parquet


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_parquet_columns_of_every_kind(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wide, fixed, deep = rng.random((50, 3)), rng.random((50, 2)).astype("f4"), rng.integers(0, 9, (50, 2, 2))
    columns = {
        "lists": pa.array(wide.tolist()),
        "fixed": pa.FixedSizeListArray.from_arrays(fixed.reshape(-1), 2),
        "deep": pa.array(deep.tolist()),
        "flag": pa.array(wide[:, 0] > 0.5),
        "half": wide[:, 0].astype("f2"),
        "word": pa.array([str(i) for i in range(50)]),
        "category": pa.array(["a", "b"] * 25).dictionary_encode(),
        "time": pa.array(np.arange(50).astype("datetime64[us]")),
    }
    file = parquet(tmp_path / "a.parquet", columns, row_group_size=7)
    assert [str(c) for c in inspect(file).columns] == [
        "lists: float64[3]", "fixed: float32[2]", "deep: int64[2, 2]", "flag: bool", "half: float16", "word: str",
        "category: str", "time: datetime64[us]",
    ]  # fmt: skip
    read = dict(zip(columns, read_partition(file), strict=True))
    expected: dict[str, npt.NDArray[Any]] = {
        "lists": wide, "fixed": fixed, "deep": deep, "flag": wide[:, 0] > 0.5, "half": wide[:, 0].astype("f2"),
        "word": np.array([str(i) for i in range(50)]), "category": np.array(["a", "b"] * 25),
        "time": np.arange(50).astype("datetime64[us]"),
    }  # fmt: skip
    for name, values in expected.items():
        assert np.array_equal(read[name], values), name
        assert read[name].dtype == values.dtype, name


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1, None, 3]}, "'x' has 1 missing values"),
        ({"x": [[1, 2], None]}, "'x' has 1 missing values"),
        ({"x": [[1, 2], [1, None]]}, "'x' has 1 missing values"),
        ({"x": [[1, 2], [1]]}, "have 1 to 2 values"),
        ({"x": [[1], [1, 2], [1]]}, "have 1 to 2 values"),
    ],
)
def test_parquet_columns_that_are_not_arrays(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    file = parquet(tmp_path / "a.parquet", columns)
    with pytest.raises(DataError, match=message) as error:
        read_partition(file)
    assert error.value.place == str(file)


@pytest.mark.parametrize(
    "column", [pa.array([{"a": 1}]), pa.array([b"raw"]), pa.array([[b"raw"]]), pa.nulls(1)], ids=lambda c: str(c.type)
)
def test_parquet_types_that_are_not_numbers(tmp_path: Path, column: pa.Array) -> None:
    refused(parquet(tmp_path / "a.parquet", {"x": column}), "'x'")


@pytest.mark.parametrize("columns", [{}, {"x": pa.array([], pa.int64())}, {"x": pa.array([], pa.list_(pa.int64()))}])
def test_parquet_without_rows_or_columns(tmp_path: Path, columns: dict[str, Any]) -> None:
    refused(parquet(tmp_path / "a.parquet", columns), "This partition has no")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"\.\[parquet\]"):
        read_partition(tmp_path / "a.parquet")


def test_the_footer_must_be_consistent(tmp_path: Path) -> None:
    """The count of rows in the footer, raised by one: thrift's zigzag of 6 is 12, of 7 is 14."""
    file = parquet(tmp_path / "a.parquet", {"x": Y}, store_schema=False)
    whole = bytearray(file.read_bytes())
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    position = whole.index(bytes([0x16, 12]), footer)  # the field of type i64 after the schema: num_rows
    whole[position + 1] = 14
    file.write_bytes(whole)
    refused(file, "its footer counts 7 rows, its row groups 6")
