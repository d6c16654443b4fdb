"""Changes of networks: what is inserted, deleted, replaced and set, and what keeps its weights."""

from __future__ import annotations

import pytest
import torch
from network_models import Branches, LeNet, ResNet
from torch import nn

from regatta.errors import ConflictError, DataError, UsageError
from regatta.network import Network, from_torch, to_torch
from regatta.network.mutate import (
    Delete,
    Edit,
    Insert,
    LayerTemplate,
    Mutation,
    Replace,
    SetAttributes,
    delete,
    insert,
    mutate,
    replace_layer,
    set_attributes,
)
from regatta.network.shapes import ShapeError
from regatta.network.torch.to_torch import load_weights, weights_of

X = torch.linspace(-1, 1, 2 * 784).reshape(2, 1, 28, 28)


@pytest.fixture
def lenet() -> tuple[LeNet, Network]:
    torch.manual_seed(0)
    model = LeNet().eval()
    return model, from_torch(model, X)


def built(mutation: Mutation, model: nn.Module) -> nn.Module:
    return to_torch(mutation.network, dict(model.state_dict()), missing="initialise").eval()


def test_inserting_an_identity_changes_no_output(lenet: tuple[LeNet, Network]) -> None:
    model, network = lenet
    for node in network.nodes:
        if node.kind != "OUTPUT":
            changed = insert(network, node.id, LayerTemplate("IDENTITY"))
            assert torch.equal(built(changed, model)(X), model(X)), node.id


def test_an_inserted_layer_gets_its_sizes_from_its_input(lenet: tuple[LeNet, Network]) -> None:
    model, network = lenet
    conv = insert(network, "conv1", LayerTemplate("CONV", {"kernel": 3, "padding": "same"}, "extra")).network
    assert dict(conv.by_id["extra"].attributes) == {
        "dims": 2, "in": 20, "out": 20, "kernel": (3, 3), "padding": (1, 1),
    }  # fmt: skip
    assert [p.name for p in conv.by_id["extra"].parameters] == ["extra.weight", "extra.bias"]
    norm = insert(conv, "extra", LayerTemplate("NORM", {"function": "batch"}, "norm")).network
    assert norm.by_id["norm"].get("features") == 20
    module = to_torch(norm, dict(model.state_dict()), missing="initialise")
    assert module(X).shape == (2, 10)
    assert torch.equal(module.state_dict()["conv2.weight"], model.conv2.weight)


def test_new_layers_are_initialised_by_the_seed_and_others_keep_their_weights(lenet: tuple[LeNet, Network]) -> None:
    model, network = lenet
    changed = insert(network, "fc1", LayerTemplate("FULL", {}, "more")).network
    one, other, third = (to_torch(changed, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.more.weight, other.more.weight)
    assert not torch.equal(one.more.weight, third.more.weight)
    found = load_weights(one, dict(model.state_dict()) | {"old": torch.zeros(3)}, missing="initialise")
    assert found.new == ("more.weight", "more.bias")
    assert found.dropped == ("old",)
    assert set(found.kept) == set(model.state_dict())
    assert torch.equal(one.more.weight, other.more.weight)


def test_names_of_a_trained_module_are_those_of_the_source(lenet: tuple[LeNet, Network]) -> None:
    model, network = lenet
    module = to_torch(network, dict(model.state_dict()))
    assert list(module.state_dict()) == list(model.state_dict())
    resnet = ResNet((1, 1), 4, 3)
    again = to_torch(from_torch(resnet, torch.zeros(1, 3, 32, 32)), dict(resnet.state_dict()))
    assert set(again.state_dict()) == set(resnet.state_dict())
    assert all(torch.equal(weights_of(again)[name], tensor) for name, tensor in resnet.named_parameters())


def test_a_deleted_layer_is_bridged(lenet: tuple[LeNet, Network]) -> None:
    model, network = lenet
    relu = next(node.id for node in network.nodes if node.kind == "RELU")
    changed = delete(network, relu)
    assert torch.equal(built(changed, model)(X), model.fc2(model.fc1(_features(model))))


def _features(model: LeNet) -> torch.Tensor:
    pool = nn.functional.max_pool2d
    return pool(model.conv2(pool(model.conv1(X), 2)), 2).flatten(1)


def test_deleting_what_others_depend_on_in_size_names_the_layer(lenet: tuple[LeNet, Network]) -> None:
    _, network = lenet
    pool = next(node.id for node in network.nodes if node.kind == "POOL")
    with pytest.raises(ShapeError, match="FULL 'fc1' takes 800 features, not "):
        delete(network, pool)


def test_with_fit_the_neighbours_are_resized_and_said(lenet: tuple[LeNet, Network]) -> None:
    model, network = lenet
    pool = next(node.id for node in network.nodes if node.kind == "POOL")
    changed = delete(network, pool, fit=True)
    assert [(r.node, r.attribute, r.before, r.after) for r in changed.resized] == [("fc1", "in", 800, 5000)]
    module = to_torch(changed.network)
    found = load_weights(module, dict(model.state_dict()), missing="initialise")
    assert found.new == ("fc1.weight",)
    assert module(X).shape == (2, 10)


def test_a_branch_can_be_cut_off() -> None:
    network = from_torch(Branches(), torch.zeros(1, 3, 9, 9))
    concat = next(node for node in network.nodes if node.kind == "CONCAT")
    left = network.sources[concat.id][0]
    changed = delete(network, left, splice=False, fit=True).network
    assert "a" not in changed.by_id  # led to nothing else
    assert changed.by_id[concat.id].shape == (None, 4, 9, 9)


def test_what_cannot_be_deleted(lenet: tuple[LeNet, Network]) -> None:
    _, network = lenet
    with pytest.raises(UsageError, match="is an input of the network"):
        delete(network, network.inputs[0].id)
    with pytest.raises(UsageError, match="would lose its input 'fc1'"):
        delete(network, "fc1", splice=False)
    adds = from_torch(ResNet((1,), 4, 3), torch.zeros(1, 3, 32, 32))
    with pytest.raises(UsageError, match="has 2 inputs"):
        delete(adds, next(node.id for node in adds.nodes if node.kind == "ADD"))


def test_a_replaced_layer_has_new_weights(lenet: tuple[LeNet, Network]) -> None:
    model, network = lenet
    changed = replace_layer(network, "fc2", LayerTemplate("FULL", {"out": 4}))
    module = to_torch(changed.network, seed=3)
    found = load_weights(module, dict(model.state_dict()), missing="initialise")
    assert found.new == ("fc2.weight", "fc2.bias")
    assert module(X).shape == (2, 4)


def test_set_keeps_weights_whose_shape_stays(lenet: tuple[LeNet, Network]) -> None:
    model, network = lenet
    changed = set_attributes(network, "conv2", {"padding": 2}, fit=True)
    module = to_torch(changed.network)
    found = load_weights(module, dict(model.state_dict()), missing="initialise")
    assert found.new == ("fc1.weight",)
    wider = set_attributes(network, "fc1", {"out": 7}, fit=True)
    assert [r.node for r in wider.resized] == ["fc2"]


def test_edits_that_only_fit_together_are_one_mutation(lenet: tuple[LeNet, Network]) -> None:
    model, network = lenet
    wider = Insert("conv1", LayerTemplate("CONV", {"out": 30, "kernel": 3, "padding": 1}, "wide"))
    edits: list[Edit] = [wider, SetAttributes("conv2", {"in": 30})]
    for edit in edits:
        with pytest.raises(ShapeError, match="CONV 'conv2' takes"):
            mutate(network, [edit])
    for order in (edits, edits[::-1]):
        changed = mutate(network, order)
        assert changed.resized == ()
        module = to_torch(changed.network)
        found = load_weights(module, dict(model.state_dict()), missing="initialise")
        assert set(found.new) == {"wide.weight", "wide.bias", "conv2.weight"}
        assert module(X).shape == (2, 10)


def test_an_edit_sees_the_layers_of_those_before_it(lenet: tuple[LeNet, Network]) -> None:
    _, network = lenet
    made = mutate(
        network,
        [
            Insert("fc1", LayerTemplate("FULL", {"out": 7}, "a")),
            Insert("a", LayerTemplate("RELU", {}, "b")),
            Replace("a", LayerTemplate("FULL", {"out": 500})),
            SetAttributes("a", {"bias": False}),
            Delete("b"),
        ],
    ).network
    assert network.targets["fc1"] == made.targets["a"] and made.targets["fc1"] == ("a",)
    assert [(p.name, p.shape) for p in made.by_id["a"].parameters] == [("a.weight", (500, 500))]
    assert "b" not in made.by_id


@pytest.mark.parametrize(
    "edits",
    [
        [Replace("fc2", LayerTemplate("FULL", {"out": 10}))],
        [Delete("fc2"), Insert("fc1", LayerTemplate("FULL", {"out": 10}, "fc2"))],
    ],
)
def test_a_new_layer_does_not_take_the_weights_of_one_that_is_gone(
    lenet: tuple[LeNet, Network], edits: list[Edit]
) -> None:
    model, network = lenet
    changed = mutate(network, edits).network
    assert [p.name for p in changed.by_id["fc2"].parameters] == ["fc2_1.weight", "fc2_1.bias"]
    found = load_weights(to_torch(changed), dict(model.state_dict()), missing="initialise")
    assert found.new == ("fc2_1.weight", "fc2_1.bias") and found.dropped == ("fc2.weight", "fc2.bias")


def test_a_new_layer_does_not_take_the_weights_of_a_reserved_name(lenet: tuple[LeNet, Network]) -> None:
    _, network = lenet
    edit = Insert("fc1", LayerTemplate("FULL", {}, "more"))
    names = {
        shape: mutate(network, [edit], reserved={"more.weight": shape}).network.by_id["more"].parameters[0].name
        for shape in ((500, 500), (3,))
    }
    assert names == {(500, 500): "more_1.weight", (3,): "more.weight"}


def test_names_that_are_taken_and_unknown_hyperparameters(lenet: tuple[LeNet, Network]) -> None:
    _, network = lenet
    with pytest.raises(ConflictError, match="has a layer 'conv2' already"):
        insert(network, "conv1", LayerTemplate("RELU", {}, "conv2"))
    with pytest.raises(DataError, match=r"CONV has no attribute 'kernl'(.|\n)*Did you mean kernel"):
        set_attributes(network, "conv1", {"kernl": 3})
    with pytest.raises(UsageError, match="needs kernel"):
        insert(network, "conv1", LayerTemplate("CONV"))
    with pytest.raises(UsageError, match="Nothing follows the output"):
        insert(network, network.nodes[-1].id, LayerTemplate("RELU"))


def test_a_shared_parameter_keeps_one_shape() -> None:
    """A layer that is called twice has one weight, which cannot take two sizes of input."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.shared(self.shared(x).relu())

    network = from_torch(Twice(), torch.zeros(2, 4))
    first, second = (node.id for node in network.nodes if node.kind == "FULL")
    edits = [SetAttributes(first, {"out": 6}), SetAttributes(second, {"out": 6})]
    with pytest.raises(UsageError, match=f"'{first}' and '{second}' share .*weight.*6, 4.*6, 6"):
        mutate(network, edits, fit=True)
    alone = [SetAttributes(first, {"out": 6}), Replace(second, LayerTemplate("FULL", {"out": 2}, "own"))]
    assert mutate(network, alone, fit=True).network.parameters["own.weight"].shape == (2, 6)


def test_a_slice_and_its_rest_make_the_whole_again(lenet: tuple[LeNet, Network]) -> None:
    model, network = lenet
    middle = next(node.id for node in network.nodes if node.kind == "FLATTEN" or node.kind == "RESHAPE")
    weights = dict(model.state_dict())
    start = to_torch(network.slice(network.inputs[0].id, middle), weights).eval()
    rest = to_torch(network.slice("fc1", "fc2"), weights).eval()
    assert torch.equal(rest(start(X)), model(X))
