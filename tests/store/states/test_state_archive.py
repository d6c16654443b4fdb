"""States in the parameter store: the same files come back, and nothing is deleted that the store cannot give back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from regatta.errors import CorruptError, NotFoundError
from regatta.store.archive.archive import archive
from regatta.store.states.state_archive import RawState, RunStates, _readable, series_bases, series_of, store_states
from regatta.store.states.state_files import read_weights, state_metadata
from regatta.store.store import ParameterStore

BITS = {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}


def run_folder(tmp_path: Path, name: str = "digits-1", seed: int = 0) -> Path:
    run = tmp_path / "runs" / name
    (run / "states").mkdir(parents=True)
    (run / "journal.jsonl").write_text(json.dumps({"event": "run", "name": name, "seed": seed}) + "\n")
    return run


def state(run: Path, epoch: int, visits: int = 2, config: str = "abc", **arrays: Any) -> RawState:
    path = run / "states" / config / f"{epoch:04d}-{visits:03d}.safetensors"
    path.parent.mkdir(exist_ok=True)
    if not arrays:
        rng = np.random.default_rng(epoch)
        weight = (np.random.default_rng(1).normal(size=(40, 70)) + 1e-3 * rng.normal(size=(40, 70))).astype("f4")
        arrays = {"model/w": weight, "model/none": np.zeros((0, 3), "i8"), "optimizer/step": np.float32(epoch)}
    save_file({n: np.asarray(a) for n, a in arrays.items()}, path, state_metadata("numpy", {"epoch": epoch}))
    return written(path, config)


def raw_state(run: Path, header: dict[str, Any] | bytes, body: bytes, epoch: int = 1) -> RawState:
    """A state file with a given header."""
    path = run / "states" / "abc" / f"{epoch:04d}-002.safetensors"
    path.parent.mkdir(exist_ok=True)
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return written(path, "abc")


def written(path: Path, config: str) -> RawState:
    return RawState(path, config, blake3(path.read_bytes()).hexdigest())


def keep(tmp_path: Path, run: Path, *states: RawState) -> Any:
    series = series_of(run)
    assert series is not None
    with ParameterStore.open(tmp_path / "store", threads=1) as store:
        outcome = store_states(store, series, states)
    assert all(one.path.exists() for one in states if one.path in outcome.stored)
    for path in outcome.stored:
        path.unlink()
    return outcome


def test_a_state_file_is_restored_byte_for_byte(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    states = [state(run, epoch) for epoch in (1, 2, 3)]
    contents = [one.path.read_bytes() for one in states]
    weights = [read_weights(one.path) for one in states]
    assert keep(tmp_path, run, *states) == ([one.path for one in states], {})
    assert not any(one.path.exists() for one in states)
    for epoch, content, expected in zip((1, 2, 3), contents, weights, strict=True):
        found = RunStates(run).weights("abc", epoch)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found)
        assert RunStates(run).materialize("abc", epoch).read_bytes() == content
    assert RunStates(run).materialize("abc") == states[-1].path


def test_states_stored_together_share_a_pack(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    keep(tmp_path, run, *(state(run, epoch) for epoch in range(1, 6)))
    assert len(list((tmp_path / "store" / "packs").iterdir())) == 1


def test_any_layout_of_a_state_file_is_restored(tmp_path: Path) -> None:
    """The header is kept unchanged: another order, spaces, a text that is not ASCII."""
    run = run_folder(tmp_path)
    first = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = {"z": {"dtype": "BF16", "shape": [3], "data_offsets": [8, 14]}, "a": first, "__metadata__": {"x": "ü"}}
    odd = raw_state(run, json.dumps(header, indent=1).encode() + b"   ", bytes(range(14)))
    content = odd.path.read_bytes()
    keep(tmp_path, run, odd)
    assert not odd.path.exists()
    assert RunStates(run).materialize("abc", 1).read_bytes() == content


def test_shared_tensors_and_bfloat16_are_weights_as_from_the_file(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    metadata = state_metadata("torch", {}, same_as={"model/tied": "model/half"})
    header = {"__metadata__": metadata, "model/half": BITS}
    half = raw_state(run, header, np.array([0x3F80, 0xBF80, 0x4049], "<u2").tobytes())
    expected = read_weights(half.path)
    keep(tmp_path, run, half)
    found = RunStates(run).weights("abc", 1)
    assert sorted(found) == ["half", "tied"]
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ({"a": BITS}, b"123456extra"),
        ({"a": BITS | {"data_offsets": [2, 8]}}, b"12345678"),
        ({"a": BITS, "b": BITS | {"data_offsets": [4, 10]}}, b"1234567890"),
        ({"a": BITS | {"shape": [4]}}, b"123456"),
        ({"a": BITS | {"dtype": "F4"}}, b"123456"),
        ({"../a": BITS}, b"123456"),
        ({"a": {}}, b""),
        ([1], b""),
        (b"\xff\xfe", b""),
        (b"{" * 100_000, b""),
    ],
)
def test_states_that_the_store_cannot_hold_stay_files(tmp_path: Path, header: Any, body: bytes) -> None:
    run = run_folder(tmp_path)
    odd, good = raw_state(run, header, body, epoch=1), state(run, 2)
    kept, left = keep(tmp_path, run, odd, good)
    assert kept == [good.path]
    assert list(left) == [odd.path]
    assert odd.path.exists()


WORDS = [
    "F32",
    "BF16",
    "dtype",
    "shape",
    "data_offsets",
    "__metadata__",
    "a",
    0,
    2,
    8,
    -1,
    2.0,
    1e999,
    None,
    True,
    10**30,
]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_header_gives_a_snapshot_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    words = st.sampled_from(WORDS)
    values = st.recursive(words, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
    entry = {key: data.draw(st.just(good) | values) for key, good in {**BITS, "data_offsets": [0, 6]}.items()}
    header = data.draw(st.just({"a": entry}) | st.dictionaries(st.sampled_from("ab"), values))
    (tmp_path / "states").mkdir(exist_ok=True)
    found, left = _readable([raw_state(tmp_path, header, b"123456")], "series")
    assert len(found) + len(left) == 1


def test_a_state_file_that_does_not_match_the_journal_stays(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    damaged, empty, gone = state(run, 1), state(run, 2), state(run, 3)
    content = bytearray(damaged.path.read_bytes())
    content[-1] ^= 1
    damaged.path.write_bytes(content)
    empty.path.write_bytes(b"")
    gone.path.unlink()
    kept, left = keep(tmp_path, run, damaged, empty, gone)
    assert kept == []
    assert "hash" in left[damaged.path] and "empty" in left[empty.path]
    assert damaged.path.exists() and empty.path.exists()


def test_a_state_file_stays_if_the_store_returns_other_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, put_all = run_folder(tmp_path), ParameterStore.put_all

    def damaging(self: ParameterStore, snapshots: Any, **options: Any) -> list[str]:
        stored = put_all(self, snapshots, **options)
        for pack in (tmp_path / "store" / "packs").iterdir():
            content = bytearray(pack.read_bytes())
            content[30] ^= 1
            pack.write_bytes(content)
        return stored

    monkeypatch.setattr(ParameterStore, "put_all", damaging)
    one = state(run, 1)
    kept, left = keep(tmp_path, run, one)
    assert kept == [] and "checksum" in left[one.path]
    assert one.path.exists()


def test_states_are_found_in_files_and_in_the_store(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    keep(tmp_path, run, state(run, 1), state(run, 2))
    state(run, 2, visits=1)  # a file of an unfinished epoch that a crash left
    newest = state(run, 3, visits=1)
    states = RunStates(run)
    assert states.weights("abc", 2).keys() == {"w", "none"}
    assert states.materialize("abc", 2).name == "0002-002.safetensors"
    assert states.materialize("abc") == newest.path
    with pytest.raises(NotFoundError, match="abc has no state of epoch 9"):
        states.weights("abc", 9)
    with pytest.raises(NotFoundError, match="other has no state"):
        states.materialize("other")


@pytest.mark.parametrize("stored", [True, False])
def test_a_restored_file_at_a_target_stays_there(tmp_path: Path, stored: bool) -> None:
    run = run_folder(tmp_path)
    one = state(run, 1)
    content = one.path.read_bytes()
    if stored:
        keep(tmp_path, run, one)
    target = tmp_path / "elsewhere" / "0001-000.safetensors"
    assert RunStates(run).materialize("abc", 1, target) == target
    if not stored:
        keep(tmp_path, run, one)
    assert target.read_bytes() == content
    assert not one.path.exists()


def test_a_new_run_with_an_old_name_has_its_own_states(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    keep(tmp_path, run, state(run, 1))
    (run / "journal.jsonl").write_text(json.dumps({"event": "run", "name": "digits-1", "seed": 7}) + "\n")
    with pytest.raises(NotFoundError):
        RunStates(run).weights("abc", 1)


def test_a_run_without_a_journal_has_only_state_files(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    one = state(run, 1)
    (run / "journal.jsonl").write_text("torn")
    assert series_of(run) is None
    assert RunStates(run).materialize("abc", 1) == one.path
    (run / "journal.jsonl").unlink()
    assert series_of(run) is None


def test_a_damaged_state_is_not_restored(tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    one = state(run, 1)
    keep(tmp_path, run, one)
    with ParameterStore.open(tmp_path / "store") as store:
        ((name, snapshot),) = store.references("runs/").items()
        manifest = store.manifest(snapshot)
        wrong = store.put(store.get(snapshot), metadata={**manifest.metadata, "hash": "0" * 64}, reference=name)
        assert wrong != snapshot
    with pytest.raises(CorruptError, match="hash"):
        RunStates(run).materialize("abc", 1)
    assert list((run / "states" / "abc").iterdir()) == []


@pytest.mark.parametrize(
    "header",
    [None, "", "[", "[1]", "{}", '{"gone":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', '{"__metadata__":{}}',
     '{"__metadata__":{"regatta":"[]"}}', '{"__metadata__":{"regatta":"{\\"same_as\\":{\\"model/a\\":\\"b\\"}}"}}'],
)  # fmt: skip
def test_a_hostile_snapshot_under_the_name_of_a_state(tmp_path: Path, header: str | None) -> None:
    run = run_folder(tmp_path)
    metadata = {"file": "../../../escaped", "hash": "0" * 64} | ({} if header is None else {"header": header})
    with ParameterStore.open(tmp_path / "store") as store:
        store.put({"w": np.ones(2)}, metadata=metadata, reference=f"runs/{series_of(run)}/abc/0001-002")
    with pytest.raises((CorruptError, NotFoundError)):
        RunStates(run).materialize("abc", 1)
    with pytest.raises((CorruptError, NotFoundError)):
        RunStates(run).weights("abc", 1)
    assert [path for path in run.rglob("*.safetensors*")] == []
    assert not list(tmp_path.rglob("escaped*"))


def test_states_are_deltas_to_the_previous_state(tmp_path: Path) -> None:
    run, other = run_folder(tmp_path), run_folder(tmp_path, "digits-2")
    for epoch in (9, 10, 11):
        keep(tmp_path, run, state(run, epoch, config="a"), state(run, epoch, config="b", **{"model/w": np.ones(300)}))
        keep(tmp_path, other, state(other, epoch + 5, config="a"))
    with ParameterStore.open(tmp_path / "store") as store:
        names = {snapshot: name for name, snapshot in store.references().items()}
        bases = {names[one]: names[base] for one, (base,) in series_bases(store.references("runs/")).items()}
        series = series_of(run)
        assert bases[f"runs/{series}/a/0010-002"] == f"runs/{series}/a/0009-002"
        assert bases[f"runs/{series}/a/0011-002"] == f"runs/{series}/a/0010-002"
        assert len(bases) == 2 + 2 + 2
        before = sum(entry.stored_bytes for entry in store.entries())
        archive(store)
        assert sum(entry.stored_bytes for entry in store.entries()) < before * 0.8
    assert RunStates(run).materialize("a", 10).exists()
