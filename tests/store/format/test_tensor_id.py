"""Ids: what enters them, what does not; names, shapes and what passes for a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from regatta.errors import CorruptError, UsageError
from regatta.store.format.dtypes import DTYPES
from regatta.store.format.manifest import Manifest, ManifestEntry, make_manifest, parse_manifest
from regatta.store.format.tensor_id import Bits, as_tensor, tensor_id, why_not_name, why_not_shape
from regatta.testing.store import bits_of, tensors


def test_the_id_is_what_the_format_says() -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert as_tensor("w", value).id == blake3(b"regatta tensor 1 F32 2,3\n" + value.tobytes()).hexdigest()
    assert as_tensor("w", np.int64(7)).id == blake3(b"regatta tensor 1 I64 \n" + (7).to_bytes(8, "little")).hexdigest()
    text = make_manifest({"w": ManifestEntry("ab" * 32, "F32", (2, 3))}, {"k": "v"}).text()
    expected = b'{"format":1,"metadata":{"k":"v"},"tensors":{"w":{"dtype":"F32","id":"%s","shape":[2,3]}}}'
    assert text == expected % (b"ab" * 32)
    assert make_manifest({}).id == blake3(b'regatta snapshot 1\n{"format":1,"metadata":{},"tensors":{}}').hexdigest()


@given(one=tensors(), other=tensors())
def test_ids_differ_exactly_when_bits_types_or_shapes_do(one: Bits, other: Bits) -> None:
    assert (as_tensor("w", one).id == as_tensor("w", other).id) == (bits_of(one) == bits_of(other))


def test_memory_layout_and_byte_order_do_not_matter() -> None:
    value = np.random.default_rng(0).normal(size=(5, 7))
    same = [value.copy(order="F"), value.astype(">f8"), np.repeat(value, 2, axis=1)[:, ::2], value.tolist()]
    assert {as_tensor("w", each).id for each in same} == {as_tensor("w", value).id}


def test_zero_and_minus_zero_are_two() -> None:
    assert as_tensor("w", np.float32(0.0)).id != as_tensor("w", np.float32(-0.0)).id


@given(value=tensors())
def test_bits_and_arrays_are_the_same_tensor(value: Bits) -> None:
    tensor = as_tensor("w", value)
    assert as_tensor("w", tensor.value()).id == tensor.id == tensor_id(tensor.dtype, tensor.shape, tensor.words)


@pytest.mark.parametrize("name", ["w", "layers.0.attn/q", "a..b", "...", "größe", "x" * 1024, "a b", "-"])
def test_good_names(name: str) -> None:
    assert why_not_name(name) is None


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "/", "/w", "w/", "a//b", "a/../b", "..\\w", "a\\.\\b", "\0", "a\nb", "\ud800", "ä" * 600, 3, None],
)
def test_bad_names(name: Any) -> None:
    assert why_not_name(name) is not None


@pytest.mark.parametrize("shape", [(-1,), (2**50,), (2**30, 2**30), (1,) * 33, (1.0,), (True,), "33", (0, 2**60), None])
def test_bad_shapes(shape: Any) -> None:
    assert why_not_shape(shape) is not None


def test_an_empty_tensor_may_have_long_sides() -> None:
    assert why_not_shape((0, 2**40)) is None
    assert why_not_shape((0, 2**40, 2**40)) is not None


def test_a_buffer_that_does_not_fit() -> None:
    with pytest.raises(UsageError, match=r"'w'.*F32.*12 bytes.*16"):
        as_tensor("w", ("F32", (3,), bytes(16)))


def test_sparse_tensors_are_refused() -> None:
    import torch

    with pytest.raises(UsageError, match="sparse"):
        as_tensor("w", torch.eye(3).to_sparse())


@given(
    st.dictionaries(st.text(min_size=1, max_size=5).filter(lambda n: why_not_name(n) is None), tensors(), max_size=3)
)
def test_manifests_are_read_as_they_were_written(values: dict[str, Bits]) -> None:
    members = {n: ManifestEntry(as_tensor(n, v).id, v.dtype, v.shape) for n, v in values.items()}
    made = make_manifest(members, {"note": 'ü \n \\ "'})
    assert parse_manifest(made.text(), made.id, "here") == made


GOOD = Manifest({"w": ManifestEntry("ab" * 32, "F32", (2, 3))}, {"k": "v"})
HOSTILE = {
    "cut": GOOD.text()[:-1],
    "spaces": GOOD.text().replace(b",", b", "),
    "order": b'{"tensors":{},"metadata":{},"format":1}',
    "twice": GOOD.text().replace(b'"k":"v"', b'"k":"v","k":"v"'),
    "climbs": GOOD.text().replace(b'"w"', b'"../w"'),
    "absolute": GOOD.text().replace(b'"w"', b'"/etc/passwd"'),
    "no id": GOOD.text().replace(b"ab" * 32, b"../../../x"),
    "no type": GOOD.text().replace(b"F32", b"F31"),
    "a type that is not a text": GOOD.text().replace(b'"F32"', b"[]"),
    "negative": GOOD.text().replace(b"[2,3]", b"[2,-3]"),
    "huge": GOOD.text().replace(b"[2,3]", b"[1" + b"0" * 40 + b"]"),
    "digits without end": GOOD.text().replace(b"[2,3]", b"[1" + b"0" * 5000 + b"]"),
    "many": GOOD.text().replace(b"[2,3]", b"[4294967296,4294967296,4294967296]"),
    "no list": GOOD.text().replace(b"[2,3]", b'{"a":1}'),
    "true": GOOD.text().replace(b"[2,3]", b"[true]"),
    "floats": GOOD.text().replace(b"[2,3]", b"[2.0,3]"),
    "newer": GOOD.text().replace(b'"format":1', b'"format":2'),
    "true as 1": GOOD.text().replace(b'"format":1', b'"format":true'),
    "more": GOOD.text().replace(b'"format":1', b'"extra":0,"format":1'),
    "surrogates": GOOD.text().replace(b'"v"', b'"\\ud800"'),
    "scheme alone": GOOD.text().replace(b'"shape"', b'"scheme":"x","shape"'),
    "nested": b"[" * 100_000,
    "a number": b"7",
    "no utf-8": b"\xff\xfe",
    "nothing": b"",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_manifests_are_named(text: bytes) -> None:
    """The ids match: an attacker can compute them."""
    snapshot = blake3(b"regatta snapshot 1\n" + text).hexdigest()
    with pytest.raises(CorruptError, match=snapshot):
        parse_manifest(text, snapshot, "here")


def test_a_manifest_of_another_snapshot() -> None:
    with pytest.raises(CorruptError, match="0000"):
        parse_manifest(GOOD.text(), "0" * 64, "here")


def test_every_type_has_a_name_that_packs_can_hold() -> None:
    assert all(len(name.encode()) <= 8 for name in DTYPES)
