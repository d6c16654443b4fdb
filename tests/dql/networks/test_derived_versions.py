"""Versions that slices and constructs make: their networks, weights and lineage, and what a second run makes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from alexnets import alexnet
from torch import Tensor, nn

from regatta.dql.networks import commit_models
from regatta.dql.networks.derived_models import DerivedModel, derive
from regatta.dql.networks.operators import derived_models
from regatta.dql.run import QueryContext, make_versions, prepare
from regatta.errors import ConflictError, RegattaError, UsageError
from regatta.network import Network, from_json, from_torch, to_torch
from regatta.network.torch.to_torch import load_weights
from regatta.repo import Repo, Version
from regatta.store.torch_tensors import torch_tensors

QUERY_2 = """slice m2 from m1
where m1.name like "alexnet-origin%"
mutate m2.input = m1["conv1"] and
m2.output = m1["fc7"]"""
QUERY_3 = """construct m2 from m1
where m1.name like "alexnet-avgv1%" and
m1["conv*($1)"].next has POOL("AVG")
mutate m1["conv*($1)"].insert = RELU("relu$1")"""
X = torch.linspace(-1, 1, 3 * 64).reshape(3, 1, 8, 8)


def network_of(repo: Repo, version: Version) -> Network:
    return from_json(json.dumps(repo.network(version)))


def tensors(repo: Repo, version: Version | str) -> dict[str, Tensor]:
    return torch_tensors(repo.weights(version).read())


def run(repo: Repo, version: Version, *inputs: Tensor) -> Any:
    with torch.no_grad():
        return to_torch(network_of(repo, version), tensors(repo, version)).eval()(*inputs)


def loaded(repo: Repo, name: str, activation: str = "relu", pools: str = "max") -> nn.Module:
    model = alexnet([pools] * 3, False, activation).eval()
    model.load_state_dict(tensors(repo, name))
    return model


def models_of(repo: Repo, text: str, **options: Any) -> list[DerivedModel]:
    context = QueryContext(repo, text)
    query = prepare(context).query
    return derive(repo, query, lambda models: make_versions(context, models), text=text, **options)


def test_query_2_of_the_paper(own_alexnets: Repo) -> None:
    """Letter for letter; what it makes is what the layers conv1 to fc7 of the trained module compute."""
    (made,) = own_alexnets.query(QUERY_2).versions()
    assert made.reference == "alexnet-origin1-m2@1"
    whole = loaded(own_alexnets, "alexnet-origin1")
    assert isinstance(whole, nn.Sequential)
    names = [name for name, _ in whole.named_children()]
    assert [node.name for node in network_of(own_alexnets, made).nodes[1:-1]] == names[: names.index("fc7") + 1]
    with torch.no_grad():
        assert torch.equal(run(own_alexnets, made, X), whole[: names.index("fc7") + 1](X))
    assert set(tensors(own_alexnets, made)) == {name for name in whole.state_dict() if not name.startswith("fc8")}


def test_query_3_of_the_paper(own_alexnets: Repo) -> None:
    """Letter for letter: a ReLU behind the convolutions that an average pool follows, which are conv1, conv2, conv5."""
    (made,) = own_alexnets.query(QUERY_3).versions()
    assert made.reference == "alexnet-avgv1-m2@1"
    source = loaded(own_alexnets, "alexnet-avgv1", "act", "avg")
    layers = list(source.named_children())
    by_hand: list[tuple[str, nn.Module]] = []
    for name, layer in layers:
        by_hand.append((name, layer))
        if name in ("conv1", "conv2", "conv5"):
            by_hand.append((name.replace("conv", "relu"), nn.ReLU()))
    assert [node.id for node in network_of(own_alexnets, made).nodes[1:-1]] == [name for name, _ in by_hand]
    with torch.no_grad():
        assert torch.equal(run(own_alexnets, made, X), nn.Sequential(*(layer for _, layer in by_hand))(X))
    assert {name: bytes_of(each) for name, each in tensors(own_alexnets, made).items()} == {
        name: bytes_of(each) for name, each in source.state_dict().items()
    }


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def test_what_a_version_keeps_of_how_it_was_made(own_alexnets: Repo) -> None:
    (made,) = own_alexnets.query(QUERY_3).versions()
    assert made.metadata["query"] == QUERY_3
    assert made.metadata["changes"][0] == "RELU relu1 inserted after conv1"
    assert made.metadata["seed"] == 0
    assert [parent.reference for parent in own_alexnets.parents(made)] == ["alexnet-avgv1@1"]
    found = own_alexnets.query("select m, p from m, p where p in parents(m) and m.meta.seed = 0")
    assert [(row["m"].id, row["p"].reference) for row in found.rows()] == [(made.id, "alexnet-avgv1@1")]
    assert commit_models.made_rows(own_alexnets, [made])[0]["parent"] == "alexnet-avgv1@1"


def test_the_same_query_makes_no_second_copies(own_alexnets: Repo) -> None:
    said: list[str] = []
    text = (
        'construct b from a where a.name like "alexnet_m%" and a.number = 1 mutate a["relu3"].replace in [GELU, SILU]'
    )
    first = own_alexnets.query(text).versions()
    assert [version.reference for version in first] == [
        "alexnet_max-b@1", "alexnet_max-b@2", "alexnet_mixed-b@1", "alexnet_mixed-b@2",
    ]  # fmt: skip
    count = len(own_alexnets.versions())
    context = QueryContext(own_alexnets, f"  {text}\n", say=said.append)  # what it made matches `where` as well
    assert [v.id for v in make_versions(context, prepare(context).query)] == [version.id for version in first]
    assert len(own_alexnets.versions()) == count
    assert said == ["4 of 4 models are versions already"]


def test_an_interrupted_query_is_finished_by_the_next(own_alexnets: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'construct b from a where a.name = "alexnet_avg" mutate a["relu3"].replace in [GELU, SILU, TANH]'
    commit, calls = Repo.commit, list[str]()

    def stops(self: Repo, name: str, *args: Any, **options: Any) -> Version:
        calls.append(name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return commit(self, name, *args, **options)

    monkeypatch.setattr(Repo, "commit", stops)
    with pytest.raises(KeyboardInterrupt):
        own_alexnets.query(text).versions()
    monkeypatch.undo()
    assert [version.reference for version in own_alexnets.query(text)] == [f"alexnet_avg-b@{n}" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    "text",
    [
        'construct b from a where a.name like "alexnet%" and a.param.lr < 1 mutate a["relu3"].replace = TANH',  # act3
        'construct b from a where a.name like "alexnet_m%" mutate a["fc8"].set(out in [9]) and a["fc7"].set(out = 3)',
        'construct b from a where a.number = 1 and a.param.lr < 1 mutate a["CONV"].insert in [TANH, CONV]',
        'construct b from a where a.name = "alexnet_avg" mutate a["relu3"].delete into "best"',  # a tag
    ],
)
def test_nothing_is_written_if_one_of_the_models_cannot_be_made(own_alexnets: Repo, text: str) -> None:
    before = own_alexnets.catalog.log.size()
    with pytest.raises(RegattaError):
        own_alexnets.query(text).versions()
    assert own_alexnets.catalog.log.size() == before


def test_a_read_only_repository_says_so_before_anything_is_derived(alexnets: Repo) -> None:
    with pytest.raises(UsageError, match="open for reading only"):
        alexnets.query(QUERY_3).versions()
    assert len(derived_models(QueryContext(alexnets, QUERY_3), prepare(QueryContext(alexnets, QUERY_3)).query)) == 1


def test_new_layers_are_initialised_by_the_seed(own_alexnets: Repo) -> None:
    text = 'construct b from a where a.name = "alexnet_avg" mutate a["fc7"].set(out = 5) fit'
    (model,) = models_of(own_alexnets, text)
    assert model.new == ("fc7.weight", "fc7.bias", "fc8.weight")
    assert model.dropped == ()
    assert models_of(own_alexnets, text)[0].id == model.id
    (other,) = models_of(own_alexnets, text, seed=1)
    assert other.id != model.id
    first, second = model.weights(), other.weights()
    assert all(torch.equal(first[name], second[name]) for name in model.kept)
    assert not torch.equal(first["fc7.weight"], second["fc7.weight"])
    module = to_torch(model.network, seed=0)
    load_weights(module, tensors(own_alexnets, "alexnet_avg"), missing="initialise")
    assert all(torch.equal(first[name], tensor) for name, tensor in module.state_dict().items())
    assert list(model.weights(["fc8.bias", "fc7.bias"])) == ["fc8.bias", "fc7.bias"]


def test_of_derived_networks_others_are_derived_and_nothing_between_is_kept(own_alexnets: Repo) -> None:
    text = (
        'construct c from (slice b from a where a.name = "alexnet_avg" mutate b.input = a["conv3"] and '
        'b.output = a["fc7"]) b mutate b["fc7"].set(out in [4, 6])'
    )
    count = len(own_alexnets.versions())
    made = own_alexnets.query(text).versions()
    assert [version.reference for version in made] == ["alexnet_avg-b-c@1", "alexnet_avg-b-c@2"]
    assert len(own_alexnets.versions()) == count + 2
    assert [parent.reference for parent in own_alexnets.parents(made[0])] == ["alexnet_avg@1"]
    assert run(own_alexnets, made[1], torch.zeros(2, 6, 2, 2)).shape == (2, 6)
    kept = tensors(own_alexnets, "alexnet_avg")
    for name, tensor in tensors(own_alexnets, made[0]).items():
        assert torch.equal(tensor, kept[name]) == (not name.startswith("fc7")), name


def test_a_select_reads_from_what_a_construct_makes(own_alexnets: Repo) -> None:
    found = own_alexnets.query(f'select m.reference, count(m["relu*"]) as n from ({QUERY_3}) m')
    assert found.tuples() == [("alexnet-avgv1-m2@1", 5)]  # relu6 and relu7 were there


def test_a_model_without_weights_is_derived_without_weights(own_alexnets: Repo) -> None:
    text = 'construct b from a where a.name = "alexnet_max" and a.number = 2 mutate a["relu3"].delete into "plain"'
    (model,) = models_of(own_alexnets, text)
    assert not model.has_weights
    assert to_torch(model.network, model.weights())(X).shape == (3, 10)
    (made,) = own_alexnets.query(text).versions()
    assert made.reference == "plain@1" and made.snapshots == 0


def test_weights_in_another_type_stay_in_it_and_new_ones_get_it(own_alexnets: Repo) -> None:
    halves = {name: tensor.to(torch.bfloat16) for name, tensor in tensors(own_alexnets, "alexnet_avg").items()}
    own_alexnets.commit("half", halves, network=own_alexnets.network("alexnet_avg"), git=False)
    (made,) = own_alexnets.query('construct b from a where a.name = "half" mutate a["conv3"].insert = NORM("batch")')
    assert {tensor.dtype for tensor in tensors(own_alexnets, made).values()} == {torch.bfloat16}
    assert run(own_alexnets, made, X.to(torch.bfloat16)).shape == (3, 10)
    module = to_torch(network_of(own_alexnets, made), halves, missing="initialise").eval()
    assert module(X.to(torch.bfloat16)).dtype == torch.bfloat16


def test_counters_of_batches_stay_with_their_norm(own_alexnets: Repo) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    model(torch.randn(5, 3))
    network = from_torch(model.eval(), torch.zeros(2, 3))
    own_alexnets.commit("counted", model.state_dict(), network=network, git=False)
    (made,) = own_alexnets.query(
        'slice b from a where a.name = "counted" mutate b.input = a["0"] and b.output = a["1"]'
    )
    found = tensors(own_alexnets, made)
    assert found["1.num_batches_tracked"] == 1
    assert "3.num_batches_tracked" not in found


def test_weights_that_do_not_fit_their_network_are_an_error(own_alexnets: Repo) -> None:
    wrong = tensors(own_alexnets, "alexnet_avg") | {"fc8.bias": torch.zeros(3)}
    own_alexnets.commit("wrong", wrong, network=own_alexnets.network("alexnet_avg"), git=False)
    with pytest.raises(UsageError, match=r"wrong@1: The weights do not fit.*'fc8.bias', of the shape \(10\).*\(3\)"):
        own_alexnets.query('construct b from a where a.name = "wrong" mutate a["conv3"].insert = RELU').versions()


def test_a_name_that_is_a_tag(own_alexnets: Repo) -> None:
    own_alexnets.tag("alexnet_avg", "alexnet_avg-b")
    with pytest.raises(ConflictError, match=r"tag 'alexnet_avg-b'(.|\n)*into"):
        own_alexnets.query('construct b from a where a.name = "alexnet_avg" mutate a["relu3"].delete').versions()


def test_an_explanation_writes_nothing(own_alexnets: Repo) -> None:
    before = own_alexnets.catalog.log.size()
    found = own_alexnets.query(QUERY_3).explain()
    assert own_alexnets.catalog.log.size() == before
    assert found["models_to_make"] == 1
    assert found["model"][0]["changes"][-1] == "RELU relu5 inserted after conv5"
    assert found["from"]["kind"] == "select"
