"""Table I of the ModelHub paper: real modules give its regular expressions; its conv, pool, ip are CONV, POOL, FULL."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from network_models import VGG19, AlexNet, LeNet, ResNet
from torch import nn

from regatta.network import Network, expression, from_torch
from regatta.network.expression import shortest_expression


def described(make: Callable[[], nn.Module]) -> Network:
    with torch.device("meta"):  # shapes only: nothing of the hundreds of megabytes is there
        return from_torch(make())


def weights(network: Network) -> int:
    buffers = ("running_mean", "running_var")
    sizes = [p.shape for node in network.nodes for p in node.parameters if p.role not in buffers]
    return sum(torch.Size(shape).numel() for shape in sizes)


@pytest.mark.parametrize(
    ("make", "said", "count"),
    [
        (LeNet, "(CONV POOL){2} FULL{2}", 431_080),
        (lambda: AlexNet(middle=(2, 2)), "(CONV POOL){2} (CONV{2} POOL){2} FULL{3}", None),
        (VGG19, "(CONV{2} POOL){2} (CONV{4} POOL){3} FULL{3}", 143_667_240),
        (ResNet, "CONV POOL CONV{150} POOL FULL", 60_192_808),
    ],
    ids=["LeNet", "AlexNet as in the table", "VGG", "ResNet"],
)
def test_the_expressions_match_the_table_of_the_paper(
    make: Callable[[], nn.Module], said: str, count: int | None
) -> None:
    network = described(make)
    assert expression(network) == said
    assert count is None or weights(network) == count


def test_the_published_alexnet_differs_from_the_table() -> None:
    """Five convolutions and three pools; the table's text has six and four."""
    network = described(AlexNet)
    assert expression(network) == "(CONV POOL){2} CONV{3} POOL FULL{3}"
    assert weights(network) == 60_965_224  # the table's 6 x 10^7


def test_other_kinds_can_be_selected() -> None:
    network = described(VGG19)
    said = "((CONV RELU){2} POOL){2} ((CONV RELU){4} POOL){3} (FULL RELU){2} FULL"
    assert expression(network, kinds=("CONV", "POOL", "FULL", "RELU")) == said
    assert expression(network, kinds=("POOL",)) == "POOL{5}"
    assert expression(network, kinds=()) == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", ""),
        ("A", "A"),
        ("A A A", "A{3}"),
        ("A B A B", "(A B){2}"),
        ("A B C B C D", "A (B C){2} D"),
        ("A B B A B B", "(A B{2}){2}"),
        ("A B A B C A B A B C", "((A B){2} C){2}"),
        ("A B A C A B A C", "(A B A C){2}"),
    ],
)
def test_repetitions_are_found(words: str, said: str) -> None:
    assert shortest_expression(words.split()) == said


def test_a_long_network_is_written_in_time() -> None:
    block = ["CONV", "NORM", "RELU", "CONV", "NORM", "ADD"]
    assert shortest_expression(block * 500) == "(CONV NORM RELU CONV NORM ADD){500}"
