"""Files of states of models in training."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from safetensors.numpy import save_file

from regatta.errors import CorruptError
from regatta.store.states.state_files import (
    StateFolder,
    make_durable,
    publishing,
    read_state,
    read_weights,
    state_framework,
    state_metadata,
)


def write(path: Path, metadata: dict[str, str] | None, **arrays: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: np.asarray(array) for name, array in arrays.items()}, path, metadata)
    return path


def test_states_are_found_by_epoch_and_visits(tmp_path: Path) -> None:
    states = StateFolder(tmp_path)
    for epoch, visits in [(1, 3), (1, 4), (2, 1), (10, 2), (9, 4)]:
        write(states.path("abc", epoch, visits), None, w=[0.0])
    write(states.path("other", 11, 1), None, w=[0.0])
    (tmp_path / "abc" / ".0011-001.safetensors.77").write_bytes(b"half written")
    (tmp_path / "abc" / "notes.safetensors").write_bytes(b"not ours")
    found = states.files("abc")
    assert found == {key: states.path("abc", *key) for key in [(1, 3), (1, 4), (2, 1), (10, 2), (9, 4)]}


def test_states_sort_by_number_beyond_the_padding(tmp_path: Path) -> None:
    states = StateFolder(tmp_path)
    for epoch, visits in [(9999, 999), (9999, 1000), (10000, 1)]:
        write(states.path("abc", epoch, visits), None, w=[0.0])
    assert sorted(states.files("abc")) == [(9999, 999), (9999, 1000), (10000, 1)]


def test_a_published_state_appears_complete(tmp_path: Path) -> None:
    states = StateFolder(tmp_path / "states")
    path = states.path("abc", 1, 1)
    with publishing(path) as written:
        assert written.parent == path.parent
        assert written.parent.is_dir()
        written.write_bytes(b"state")
        assert not states.files("abc")
    assert not written.exists()
    assert path.read_bytes() == b"state"


def test_two_writers_of_one_state_do_not_share_a_temporary_name(tmp_path: Path) -> None:
    """A worker that is taken for dead may still write while another does its unit again."""
    with publishing(tmp_path / "x") as first, publishing(tmp_path / "x") as second:
        assert first != second
        first.write_bytes(b"first")
        second.write_bytes(b"second")
    assert (tmp_path / "x").read_bytes() == b"first"  # the last to end
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("content", [b"", b"state", os.urandom(300_000)])
def test_make_durable_returns_hash_and_size(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "states" / "abc" / "0001-001.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert make_durable(path) == (blake3(content).hexdigest(), len(content))


def test_dropping_a_state_twice_is_allowed(tmp_path: Path) -> None:
    states = StateFolder(tmp_path)
    path = write(states.path("abc", 1, 1), None, w=[0.0])
    states.drop(path)
    states.drop(path)
    assert not path.exists()


def test_equal_states_are_equal_files(tmp_path: Path) -> None:
    """Metadata must not bring an order of its own into the file: replay compares hashes of files."""
    metadata = state_metadata("numpy", {"b": 1, "a": 2}, same_as={}, on_device=[])
    assert len(metadata) == 1
    files = [write(tmp_path / str(i), metadata, b=[1.0], a=[2.0]).read_bytes() for i in range(2)]
    assert files[0] == files[1]


def test_a_state_names_its_framework(tmp_path: Path) -> None:
    assert state_framework(write(tmp_path / "s", state_metadata("numpy", {}), w=[0.0])) == "numpy"


def test_weights_are_the_models_tensors_alone(tmp_path: Path) -> None:
    metadata = state_metadata("torch", {}, same_as={"model/again": "model/w", "optimizer/x": "model/w"})
    path = write(tmp_path / "s", metadata, **{"model/w": [1.0, 2.0], "model/a.b": [3], "optimizer/m": [4.0]})
    weights = read_weights(path)
    assert {name: array.tolist() for name, array in weights.items()} == {
        "w": [1.0, 2.0],
        "again": [1.0, 2.0],
        "a.b": [3],
    }


def header(length: int, text: bytes) -> bytes:
    return struct.pack("<Q", length) + text


def lying(metadata: Any) -> bytes:
    text = json.dumps({"__metadata__": metadata, "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return header(len(text), text) + b"\0" * 4


ATTACKS = {
    "empty": b"",
    "a length and no more": header(100, b""),
    "a length beyond all memory": header(2**62, b"{}"),
    "not JSON": header(4, b"{{{{"),
    "offsets beyond the end": header(
        66, b'{"w":{"dtype":"F32","shape":[999999999],"data_offsets":[0,3999999996]}}'[:66].ljust(66)
    ),
    "no metadata of ours": lying({}),
    "metadata that is not JSON": lying({"regatta": "{"}),
    "metadata that is not an object": lying({"regatta": "[1]"}),
    "another version": lying({"regatta": '{"version": 2}'}),
    "no framework and no tree": lying({"regatta": '{"version": 1}'}),
    "names of the wrong kind": lying({"regatta": '{"version": 1, "framework": "torch", "tree": 3}'}),
    "deep JSON": lying({"regatta": "[" * 100_000}),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("library", ["np", "pt"])
def test_files_that_are_not_states_are_refused(tmp_path: Path, name: str, library: str) -> None:
    path = tmp_path / "attack"
    path.write_bytes(ATTACKS[name])
    with pytest.raises(CorruptError, match="attack: "):
        read_state(path, library)


def test_a_folder_in_place_of_a_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="cannot be read"):
        read_state(tmp_path, "np")
