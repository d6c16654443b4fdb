"""Trees of state survive a round trip through JSON and tensors, or are refused with their path."""

from __future__ import annotations

import json
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.errors import CorruptError, UsageError
from regatta.frameworks.state_tree import flatten, unflatten


class Tensor:
    """Stands for a tensor: only its identity matters here."""

    def __repr__(self) -> str:
        return f"tensor@{id(self)}"


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


keys = st.one_of(
    st.text(),
    st.sampled_from(["$", "v", "", "a/b", "1", "~"]),
    st.integers(),
    st.booleans(),
    st.none(),
    st.floats(),
    st.tuples(st.integers(), st.text()),
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 2**200]),
    st.text(),
    st.builds(Tensor),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=5),
        st.dictionaries(st.text(), inner, max_size=4),
        st.dictionaries(keys, st.integers(), max_size=4).map(Counter),
    ),
    max_leaves=25,
)


def same(one: Any, other: Any) -> bool:
    """Equal with types, order, bits of floats and identity of tensors."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other) or (one != one and other != other)
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other if isinstance(one, Tensor) else bool(one == other)


@given(trees)
def test_a_tree_survives_a_round_trip(tree: Any) -> None:
    skeleton, tensors = flatten({"part": tree}, is_tensor)
    text = json.dumps(skeleton, allow_nan=False)
    assert same(unflatten(json.loads(text), tensors.__getitem__)["part"], tree)


@given(trees, trees)
def test_tensors_are_named_below_their_part(one: Any, other: Any) -> None:
    """Two parts of a state never take each other's names."""
    names = [set(flatten({part: tree}, is_tensor)[1]) for part, tree in (("model", one), ("optimizer", other))]
    assert not names[0] & names[1]


def test_names_are_paths_in_the_tree() -> None:
    first, second = Tensor(), Tensor()
    tree = {"state": {0: {"exp_avg": first}}, "groups": [{"lr": second}]}
    assert flatten({"optimizer": tree}, is_tensor)[1] == {
        "optimizer/state/0/exp_avg": first,
        "optimizer/groups/0/lr": second,
    }


def test_an_ordered_dict_keeps_its_order() -> None:
    tree = OrderedDict(b=1, a=2)
    assert list(unflatten(flatten({"part": tree}, is_tensor)[0]["part"], {}.get).items()) == [("b", 1), ("a", 2)]


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (1j, "complex"),
        (print, "builtin_function_or_method"),
        (Pair(1, 2), "Pair"),
        (defaultdict(list), "defaultdict"),
        (deque([1]), "deque"),
        (object(), "object"),
    ],
)
def test_values_that_cannot_be_restored_are_refused_with_their_path(value: Any, kind: str) -> None:
    with pytest.raises(UsageError, match=f"optimizer/state/3/1/x holds a {kind}, which cannot travel"):
        flatten({"optimizer": {"state": {3: [0, {"x": value}]}}}, is_tensor)


def test_a_tensor_as_a_key_is_refused() -> None:
    with pytest.raises(UsageError, match="optimizer/state has a tensor as a key"):
        flatten({"optimizer": {"state": {Tensor(): 1}}}, is_tensor)


def test_an_unknown_mark_is_refused() -> None:
    with pytest.raises(CorruptError, match="unknown tag 'code'"):
        unflatten([{"$": "code", "v": "print()"}], {}.get)


def test_a_tensor_that_is_missing_is_named() -> None:
    with pytest.raises(CorruptError, match="lacks its tensor 'model/w'"):
        unflatten({"w": {"$": "tensor", "v": "model/w"}}, {}.__getitem__)
