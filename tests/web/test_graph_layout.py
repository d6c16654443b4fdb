"""Where layers are drawn: nothing overlaps, all lines run down, main paths are straight, large networks are quick."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from regatta.web.graph_layout import GAP, HEIGHT, Drawing, arrange, fold


def drawn(kinds: dict[str, str], sources: dict[str, list[str]]) -> Drawing:
    found = arrange(kinds, sources, dict.fromkeys(kinds, 100.0))
    for one, other in combinations(found.places, 2):
        if one.row == other.row:
            assert abs(one.x - other.x) >= (one.width + other.width) / 2 + GAP - 1e-6
    for line in found.lines:
        chain = [line.source, *line.lanes, line.target]
        assert all(found.places[lower].row > found.places[upper].row for upper, lower in pairwise(chain))
    assert found.width >= 0 and all(place.x >= 0 for place in found.places)
    return found


def residual(blocks: int) -> tuple[dict[str, str], dict[str, list[str]]]:
    kinds, sources = {"in": "INPUT"}, {"in": []}
    last = "in"
    for number in range(blocks):
        for name, kind, needed in (
            (f"conv{number}", "CONV", [last]),
            (f"norm{number}", "NORM", [f"conv{number}"]),
            (f"more{number}", "CONV", [f"norm{number}"]),
            (f"add{number}", "ADD", [f"more{number}", last]),
        ):
            kinds[name], sources[name] = kind, needed
        last = f"add{number}"
    return kinds, sources


def test_activations_share_the_box_of_their_layer() -> None:
    kinds = {"x": "INPUT", "c": "CONV", "n": "NORM", "r": "RELU", "p": "POOL", "r2": "RELU", "s": "ADD"}
    sources = {"c": ["x"], "n": ["c"], "r": ["n"], "p": ["r"], "r2": ["x"], "s": ["p", "r2"]}
    assert fold(kinds, sources) == [["x"], ["c", "n", "r"], ["p"], ["r2"], ["s"]]  # an input stays alone


def test_a_layer_with_two_consumers_is_not_folded() -> None:
    kinds = {"c": "CONV", "r": "RELU", "s": "ADD"}
    assert fold(kinds, {"r": ["c"], "s": ["r", "c"]}) == [["c"], ["r"], ["s"]]


def test_the_main_path_of_a_residual_network_is_straight() -> None:
    found = drawn(*residual(6))
    assert len({round(box.x) for box in found.boxes}) == 1
    assert found.height == found.boxes[-1].y + HEIGHT


def test_branches_are_side_by_side_and_do_not_cross() -> None:
    kinds = {"x": "INPUT", **{name: "CONV" for name in "abcd"}, "cat": "CONCAT"}
    sources = {**{name: ["x"] for name in "abcd"}, "cat": list("abcd")}
    found = drawn(kinds, sources)
    places = {box.members[0]: box for box in found.boxes}
    assert [places[name].row for name in "abcd"] == [1] * 4
    assert sorted("abcd", key=lambda name: places[name].x) == list("abcd")
    assert abs(places["cat"].x - places["x"].x) < 1


def test_constants_are_drawn_just_above_their_consumers() -> None:
    kinds = {"x": "INPUT", "a": "CONV", "b": "CONV", "k": "CONSTANT", "s": "MUL"}
    found = drawn(kinds, {"a": ["x"], "b": ["a"], "s": ["b", "k"]})
    rows = {box.members[0]: box.row for box in found.boxes}
    assert rows["k"] == rows["s"] - 1


@pytest.mark.parametrize("seed", range(5))
def test_any_graph_can_be_drawn(seed: int) -> None:
    rng = random.Random(seed)
    names = [str(number) for number in range(60)]
    kinds = {name: rng.choice(["CONV", "RELU", "ADD", "NORM", "INPUT"]) for name in names}
    sources = {name: rng.sample(names[:n], min(n, rng.choice([0, 1, 1, 2, 3]))) for n, name in enumerate(names)}
    found = drawn(kinds, sources)
    assert sorted(node for box in found.boxes for node in box.members) == sorted(names)


def test_a_fully_connected_graph_is_drawn() -> None:
    """A dense network of 120 layers: 7,000 lines, most of them through many rows."""
    names = [f"n{number}" for number in range(120)]
    found = arrange(
        dict.fromkeys(names, "CONCAT"), {n: names[:i] for i, n in enumerate(names)}, dict.fromkeys(names, 90.0)
    )
    assert len(found.lines) == 120 * 119 // 2
    assert len(found.places) <= 120 + 4000


def test_graphs_with_cycles_are_drawn() -> None:
    kinds = dict.fromkeys("abcdef", "CONV")
    sources = {"a": ["c"], "b": ["a", "b"], "c": ["b"], "d": ["c"], "e": ["d"], "f": ["e", "a"]}
    found = arrange(kinds, sources, dict.fromkeys(kinds, 100.0))
    assert len(found.boxes) == 6 and len(found.lines) == 8


def test_a_graph_without_layers_has_no_drawing() -> None:
    assert arrange({}, {}, {}).boxes == ()
