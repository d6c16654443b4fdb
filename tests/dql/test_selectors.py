"""Selectors of layers: three matchers agree, captures, and limits."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regatta.dql.selectors import SelectorError, SelectorPattern, fill_captures, parse_selector
from regatta.network.aliases import LayerNames, layer_names
from regatta.store.sqlite import sqlite3

PIECES = st.sampled_from(["a", "b", "1", "12", "*", "?", "[a,ab]", "[1-3]", "[9-11,b]", "\\*", "\\[", ".", "*($1)"])
NAMES = st.text("ab123.*[", min_size=1, max_size=9)


def matches_slowly(pattern: SelectorPattern, name: str) -> bool:
    """The definition: every way to cut the name into pieces."""

    def follows(part: int, at: int) -> bool:
        if part == len(pattern.parts):
            return at == len(name)
        this = pattern.parts[part]
        if this.wildcard == "*":
            return any(follows(part + 1, end) for end in range(at, len(name) + 1))
        if this.wildcard == "?":
            return at < len(name) and follows(part + 1, at + 1)
        return any(name.startswith(text, at) and follows(part + 1, at + len(text)) for text in this.texts)

    return follows(0, 0)


@given(st.lists(PIECES, min_size=1, max_size=6).map("".join), NAMES)
@example("*[a,ab]b", "aab")
@example("[a,ab]*1", "ab1")
def test_expression_glob_and_definition_agree(text: str, name: str) -> None:
    try:
        pattern = parse_selector(text)
    except SelectorError:
        return
    wanted = matches_slowly(pattern, name)
    assert (pattern.match([name]) is not None) == wanted
    db = sqlite3.connect(":memory:")
    assert any(db.execute("SELECT ? GLOB ?", (name, glob)).fetchone()[0] for glob in pattern.globs()) == wanted
    db.close()


@pytest.mark.parametrize(
    ("selector", "name", "captures"),
    [
        ("conv*($1)", "conv12", {1: "12"}),
        ("conv*($1)", "conv", {1: ""}),
        ("b[1,3]($2).c?($1)", "b3.cx", {2: "3", 1: "x"}),
        ("conv[1,3,5]", "conv3", {}),
        ("fc[6-8]", "fc7", {}),
        ("layer[9-11]($1)", "layer10", {1: "10"}),
        ("[conv,pool]($1)1", "pool1", {1: "pool"}),
        ("a\\*b", "a*b", {}),
        ("f(x)", "f(x)", {}),
    ],
)
def test_captures(selector: str, name: str, captures: dict[int, str]) -> None:
    assert parse_selector(selector).match(["other", name]) == captures


@pytest.mark.parametrize(
    ("selector", "name"), [("conv[1,3,5]", "conv2"), ("conv", "conv1"), ("CONV", "conv"), ("a\\*", "ab"), ("?", "ab")]
)
def test_whole_names_match_in_their_own_case(selector: str, name: str) -> None:
    assert parse_selector(selector).match([name, ""]) is None


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("", "empty"),
        ("x" * 257, "257 characters"),
        ("conv[1,3", "not closed"),
        ("conv[1,,3]", "empty alternative"),
        ("conv[5-1]", "range 5-1"),
        ("conv[1-9999999]", "range 1-9999999"),
        ("[1-100][1-100]", "10,000 alternatives"),
        ("conv($1)", r"must follow \*"),
        ("*($1)*($1)", "captured twice"),
        ("a\\", "backslash"),
    ],
)
def test_wrong_selectors(selector: str, message: str) -> None:
    with pytest.raises(SelectorError, match=message):
        parse_selector(selector)


def test_no_selector_takes_long() -> None:
    begin = time.process_time()
    for selector in ("*a" * 128, "*?" * 127 + "c", "*[a,aa]" * 7 + "b"):
        assert parse_selector(selector).match(["a" * 1000 + "d"]) is None
    assert time.process_time() - begin < 10


def test_captures_are_filled_into_names() -> None:
    assert fill_captures("relu$1_$2$1", {1: "3", 2: "x"}) == "relu3_x3"
    with pytest.raises(SelectorError, match=r"captures nothing as \$2"):
        fill_captures("relu$2", {1: "3"})


def test_other_names_of_layers() -> None:
    layers = [
        ("x", "INPUT", "x"),
        ("0", "CONV", "0"),
        ("features.1", "RELU", "features.1"),
        ("/conv1/Conv", "CONV", ""),
        ("/features/features.3/Conv", "CONV", ""),
        ("/Relu", "RELU", ""),
        ("fc6", "FULL", "fc6"),
    ]
    assert layer_names(layers) == [
        LayerNames("x", "x", "", ""),
        LayerNames("0", "0", "", "conv1"),
        LayerNames("features.1", "features.1", "", "relu1"),
        LayerNames("/conv1/Conv", "", "conv1", ""),
        LayerNames("/features/features.3/Conv", "", "features.3", "conv3"),
        LayerNames("/Relu", "", "", ""),
        LayerNames("fc6", "fc6", "", ""),
    ]
