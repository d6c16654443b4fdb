"""Mutations of one network: what they change, in which order, and what is refused."""

from __future__ import annotations

import pytest
import torch
from small_networks import IMAGES, Fork, alexnet, constructed, state
from torch import nn

from regatta.errors import ConflictError, DataError, NotFoundError, RegattaError, UsageError
from regatta.network import Network, from_torch, to_torch
from regatta.network.shapes import ShapeError

MODEL, NETWORK = alexnet()


def order(network: Network) -> list[str]:
    return [id for id in network.order if network.by_id[id].kind not in ("INPUT", "OUTPUT")]


def changes(mutations: str) -> list[tuple[str, ...]]:
    return [made.changes for made in constructed(NETWORK, mutations)]


def test_a_layer_is_inserted_between_a_layer_and_all_that_use_it() -> None:
    fork = from_torch(nn.Sequential(nn.Conv2d(1, 2, 1), Fork(nn.ReLU(), nn.Tanh())), torch.zeros(1, 1, 4, 4))
    (made,) = constructed(fork, 'a["0"].insert = GELU("between")')
    assert made.network.sources["between"] == ("0",)
    assert made.network.targets["0"] == ("between",)
    assert sorted(made.network.by_id[id].kind for id in made.network.targets["between"]) == ["RELU", "TANH"]


def test_inserted_layers_stand_in_the_order_in_which_they_are_written() -> None:
    (made,) = constructed(NETWORK, 'a["conv1"].insert = NORM("batch", "n") and a["conv1"].insert = RELU("r")')
    assert order(made.network)[:4] == ["conv1", "n", "r", "pool1"]
    assert made.changes == ("NORM(function=batch) n inserted after conv1", "RELU r inserted after n")


def test_captures_number_the_names_of_new_layers() -> None:
    (made,) = constructed(NETWORK, 'a["conv*($1)"].insert = TANH("act$1")')
    assert [id for id in order(made.network) if id.startswith("act")] == ["act1", "act2", "act3"]
    assert made.network.sources["act2"] == ("conv2",)


def test_layers_without_a_name_are_numbered_by_kind() -> None:
    assert changes('a["conv[1,2]"].insert = RELU') == [
        ("RELU relu_2 inserted after conv1", "RELU relu_3 inserted after conv2")  # relu and relu_1 are there
    ]


def test_every_combination_of_options_is_a_variant() -> None:
    found = changes('a["conv1"].insert in [TANH, GELU] and a["fc7"].set(out in [8, 4], bias in [true, false]) fit')
    assert len(found) == 8
    assert found[0][:3] == (
        "TANH tanh inserted after conv1", "out of fc7 set to 8 (was 16)", "bias of fc7 set to true (was true)",
    )  # fmt: skip
    assert found[-1][:3] == (
        "GELU gelu inserted after conv1", "out of fc7 set to 4 (was 16)", "bias of fc7 set to false (was true)",
    )  # fmt: skip
    assert len(constructed(NETWORK, 'a["conv1"].insert = CONV(kernel in [1, 3, 5], padding = "same")')) == 3


def test_a_deleted_layer_is_bridged_and_one_cut_off_takes_its_branch_along() -> None:
    (made,) = constructed(NETWORK, 'a["relu2"].delete')
    assert made.network.sources["conv3"] == ("conv2",)
    assert made.changes == ("RELU relu2 deleted",)
    fork = from_torch(
        nn.Sequential(Fork(nn.Sequential(nn.Tanh(), nn.Conv2d(1, 1, 1)), nn.ReLU())), torch.zeros(1, 1, 4, 4)
    )
    concat = next(node.id for node in fork.nodes if node.kind == "CONCAT")
    branch = fork.sources[concat][0]
    (made,) = constructed(fork, f'a["{branch}"].delete(reconnect = false)')
    assert len(made.network.sources[concat]) == 1
    assert made.changes[0] == f"CONV {branch} deleted without reconnecting"
    assert made.changes[1].endswith("deleted, because they led to no output any more")


def test_a_replaced_layer_keeps_its_place_and_its_name() -> None:
    first, second = constructed(NETWORK, 'a["relu2"].replace in [GELU, SILU("act")]')
    assert first.network.by_id["relu2"].kind == "GELU"
    assert order(second.network) == ["act" if id == "relu2" else id for id in order(NETWORK)]


def test_a_layer_can_be_inserted_after_one_that_is_replaced() -> None:
    (made,) = constructed(NETWORK, 'a["relu2"].replace = GELU("g") and a["relu2"].insert = DROPOUT(p = 0.2)')
    assert made.network.sources["dropout"] == ("g",)


def test_hyperparameters_are_set_and_what_follows_is_resized() -> None:
    (made,) = constructed(NETWORK, 'a["conv2"].set(out = 8, kernel = [3, 5], padding = "same") fit')
    assert made.network.by_id["conv2"].shape == (None, 8, 14, 14)
    assert made.changes == (
        "out of conv2 set to 8 (was 6)", "kernel of conv2 set to 3x5 (was 3)", "padding of conv2 set to same (was 1)",
        "in of conv3 resized from 6 to 8",
    )  # fmt: skip
    assert to_torch(made.network)(IMAGES).shape == (2, 10)


def test_kinds_and_steps_select_layers() -> None:
    (made,) = constructed(NETWORK, 'a["CONV"].insert = TANH and a["fc6"].next.replace = GELU')
    assert [made.network.by_id[id].kind for id in order(made.network)].count("TANH") == 3
    after = made.network.targets["fc6"][0]
    assert made.network.by_id[after].kind == "GELU"
    (made,) = constructed(NETWORK, 'a["conv1"] -> POOL .insert = TANH("t")')
    assert made.network.sources["t"] == ("pool1",)
    (made,) = constructed(NETWORK, 'a["fc8"].prev.prev.set(bias = false)')
    assert made.changes == ("bias of fc7 set to false (was true)",)


def test_numbered_layers_have_names_to_select() -> None:
    plain = from_torch(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(2, 4))
    (made,) = constructed(plain, 'a["full*($1)"].insert = DROPOUT("drop$1")')
    assert made.network.sources["drop1"] == ("0",)
    assert made.network.sources["drop2"] == ("2",)


@pytest.mark.parametrize("selector", ["*", "output*", "x"])
def test_ends_are_changed_only_where_a_selector_names_nothing_else(selector: str) -> None:
    network = from_torch(nn.Sequential(nn.ReLU(), nn.Tanh()), torch.zeros(2, 4))
    mutation = f'a["{selector}"].replace = GELU'
    if selector == "*":
        (made,) = constructed(network, mutation)
        assert [node.kind for node in made.network.nodes] == ["INPUT", "GELU", "GELU", "OUTPUT"]
    else:
        with pytest.raises(RegattaError, match=r"of the network and cannot be replaced|selects no layer"):
            constructed(network, mutation)


@pytest.mark.parametrize(
    ("mutations", "error", "message"),
    [
        ('a["zzz*"].delete', NotFoundError, r"'zzz\*' selects no layer(.|\n)*The layers are x, conv1"),
        ('a["conv11"].delete', NotFoundError, "Did you mean conv1"),
        ('a["fc8"].next.next.delete', NotFoundError, "'fc8' with its steps selects no layer"),
        ('a["conv1"].insert = RELU("conv2")', ConflictError, "has a layer 'conv2' already"),
        ('a["conv*"].insert = RELU("r")', ConflictError, r"Two new layers would be called 'r'(.|\n)*relu\$1"),
        ('a["relu2"].replace = GELU("conv1")', ConflictError, "has a layer 'conv1' already"),
        ('a["relu2"].delete and a["relu2"].delete', ConflictError, "'relu2' is deleted by an earlier mutation"),
        ('a["relu2"].delete and a["relu2"].insert = TANH', ConflictError, "is deleted by an earlier"),
        ('a["relu2"].replace = GELU and a["relu*"].replace = SILU', ConflictError, "is replaced by an earlier"),
        ('a["fc6"].set(out = 3) and a["fc*"].set(out = 4)', ConflictError, "'out' of 'fc6' is set by an earlier"),
        ('a["fc6"].set(out = 3) and a["fc6"].replace = FULL', ConflictError, "'out' of 'fc6' is set by an earlier"),
        ('a["fc6"].replace = FULL and a["fc6"].set(out = 3)', ConflictError, "is replaced by an earlier"),
        ('a["pool1"].delete', ShapeError, r"FULL 'fc6' takes 294 features, not 1176; its input is .* \(\?, 1176\)"),
        ('a["fc7"].set(out = 8)', ShapeError, r"FULL 'fc8' takes 16 features, not 8; its input is .* \(\?, 8\)"),
        ('a["fc8"].delete(reconnect = false)', UsageError, "OUTPUT 'output' would lose its input 'fc8'"),
        ('a["output"].delete', UsageError, "is an output of the network"),
        ('a["x"].set(out = 3)', DataError, "INPUT has no attribute 'out'"),
        ('a["relu2"].set(out = 3)', DataError, "RELU has no attribute 'out'"),
        ('a["conv1"].insert = CONV', UsageError, "CONV 'conv'.* needs kernel"),
    ],
)
def test_what_is_refused(mutations: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        constructed(NETWORK, mutations)


def test_layers_that_did_not_change_keep_their_weights() -> None:
    (made,) = constructed(NETWORK, 'a["conv2"].insert = NORM("batch") and a["fc8"].set(out = 5)')
    module = to_torch(made.network, state(MODEL), missing="initialise")
    kept = {name: tensor for name, tensor in MODEL.state_dict().items() if not name.startswith("fc8")}
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in kept.items())
    assert module(IMAGES).shape == (2, 5)
