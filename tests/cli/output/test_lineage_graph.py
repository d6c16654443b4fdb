"""Lineage in lines of text: every node once, children above their parents, lines that connect the right nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regatta.cli.output.lineage_graph import ASCII, UNICODE, children_first, draw, strokes

Parents = dict[str, list[str]]


def text(ids: str, parents: Parents, ascii: bool = False) -> list[str]:
    lines = []
    for node in draw(children_first(ids.split(), parents), parents, ASCII if ascii else UNICODE):
        lines += [*node.above, f"{node.prefix} {node.id}", *node.below]
    return lines


def test_a_chain_and_an_unrelated_node() -> None:
    assert text("c b a x", {"c": ["b"], "b": ["a"]}) == ["● c", "● b", "○ a", "○ x"]


def test_siblings_and_a_merge_are_drawn() -> None:
    assert text("m x y a", {"m": ["x", "y"], "x": ["a"], "y": ["a"]}) == [
        "● m", "├─╮", "● │ x", "│ ● y", "├─╯", "○ a",
    ]  # fmt: skip


def test_many_children_stay_narrow() -> None:
    parents = {child: ["a"] for child in "hgfedcb"}
    lines = text("h g f e d c b a", parents)
    assert max(map(len, lines)) <= 5 and lines[-1] == "○ a" and lines[:3] == ["● h", "│ ● g", "├─╯"]


def test_crossing_lines_are_drawn_in_ascii() -> None:
    parents = {"m": ["x", "y", "z"], "n": ["y"], "x": ["a"], "y": ["a"], "z": ["a"]}
    lines = text("m n x y z a", parents, ascii=True)
    assert lines[:4] == ["* m", "|-.-.", "| | | * n", "| |-+-'"]
    assert "".join(lines).isascii()


def test_strokes_depend_on_the_encoding_of_the_terminal() -> None:
    assert strokes("utf-8") is UNICODE
    assert strokes("ascii") is ASCII and strokes(None) is ASCII and strokes("no-such-thing") is ASCII


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], Parents]:
    count = draw(st.integers(1, 14))
    ids = [str(number) for number in range(count)]
    parents = {ids[n]: draw(st.lists(st.sampled_from([*ids[n + 1 :], "elsewhere"]), max_size=3)) for n in range(count)}
    return draw(st.permutations(ids)), parents


@given(graphs())
def test_every_node_is_drawn_once_above_its_parents(made: tuple[list[str], Parents]) -> None:
    ids, parents = made
    order = children_first(ids, parents)
    assert sorted(order) == sorted(ids)
    place = {ident: number for number, ident in enumerate(order)}
    assert all(place[child] < place[p] for child, several in parents.items() for p in several if p in place)
    nodes = draw(order, parents)
    assert [node.id for node in nodes] == order
    waiting: set[str] = set()
    for node in nodes:
        waiting.discard(node.id)
        waiting |= {parent for parent in parents.get(node.id, []) if parent in place}
        mine = [parent for parent in parents.get(node.id, []) if parent in place]
        assert node.prefix.count("●" if mine else "○") == 1 and node.prefix.count("○" if mine else "●") == 0
        assert node.beside.count("│") >= len(waiting), "a lane for each that is still to come"
    assert nodes[-1].beside == ""


@pytest.mark.parametrize("count", [10_000])
def test_ten_thousand_versions_are_drawn_quickly(count: int) -> None:
    ids = [str(number) for number in range(count)]
    parents = {ids[n]: [ids[min(count - 1, n + 1 + n % 7)]] for n in range(count - 1)}
    assert len(draw(children_first(ids, parents), parents)) == count
