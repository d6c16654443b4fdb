"""Headers of safetensors files: what was written is read again, and nothing in one is trusted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save_file

from regatta.safetensors_io import (
    MAX_HEADER_BYTES,
    METADATA,
    HeaderError,
    TensorEntry,
    encode_header,
    parse_header,
    read_header,
    split_header,
    tensor_entry,
)


def test_a_file_of_the_library_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w": np.zeros((2, 3), "f4"), "b": np.zeros(1, "i8")}, path, {"note": "ü"})
    header = read_header(path)
    assert header.metadata == {"note": "ü"}
    assert header.tensors() == [TensorEntry("b", "I64", (1,), 0, 8), TensorEntry("w", "F32", (2, 3), 8, 32)]
    header.check_coverage(path.stat().st_size)
    assert split_header(memoryview(path.read_bytes())) == header


def test_the_library_reads_what_is_written() -> None:
    header = encode_header({METADATA: {"note": "x"}, "w": tensor_entry("F32", (2,), 0, 8)})
    assert len(header) % 8 == 0
    assert load(header + np.array([1, 2], "<f4").tobytes())["w"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"1234567", "cut off"),
        ((2**63).to_bytes(8, "little") + b"{}", "cut off"),
        ((3).to_bytes(8, "little") + b"{}", "cut off"),
        ((1).to_bytes(8, "little") + b"{", "not JSON"),
        ((2).to_bytes(8, "little") + b"\xff\xfe", "not JSON"),
        ((2).to_bytes(8, "little") + b"[]", "not a JSON object"),
    ],
)
def test_hostile_lengths_and_texts(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a").write_bytes(content)
    for read in (lambda: read_header(tmp_path / "a"), lambda: split_header(memoryview(content))):
        with pytest.raises(HeaderError, match=reason):
            read()


def test_a_header_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(MAX_HEADER_BYTES + 9)  # sparse: takes no room on the disk
    with pytest.raises(HeaderError, match="more than the 100000000 allowed"):
        read_header(tmp_path / "a")


@pytest.mark.parametrize(
    ("first", "second", "size", "reason"),
    [
        ((0, 8), (4, 12), 12, "starts at byte"),
        ((0, 8), (16, 24), 24, "starts at byte"),
        ((8, 16), (16, 24), 24, "starts at byte"),
        ((0, 8), (8, 16), 15, "cut off"),
        ((0, 8), (8, 16), 17, "something follows"),
    ],
)
def test_gaps_and_overlaps_are_found(first: tuple[int, int], second: tuple[int, int], size: int, reason: str) -> None:
    content = {"a": tensor_entry("F32", (2,), *first), "b": tensor_entry("F32", (2,), *second)}
    header = parse_header(json.dumps(content).encode())
    with pytest.raises(HeaderError, match=reason):
        header.check_coverage(header.size + size)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dtype", "shape"]), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets"]), values) | values)
def test_any_entry_is_a_tensor_or_an_error(entry: object) -> None:
    header = parse_header(json.dumps({"a": entry}).encode())
    try:
        (tensor,) = header.tensors()
    except HeaderError:
        return
    assert all(type(number) is int and number >= 0 for number in (*tensor.shape, tensor.start, tensor.stop))
