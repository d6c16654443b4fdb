"""What must hold for every network: an inserted identity changes nothing, and the two parts of a network are it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_networks import RANDOM_NETWORKS, constructed, state
from torch import Tensor, nn

from regatta.dql.networks.layer_sets import NamedLayers
from regatta.network import Network, infer_shapes, to_torch

Made = tuple[nn.Module, Network, Tensor]
SLOW = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def run(network: Network, weights: Any, *inputs: Tensor) -> Any:
    with torch.no_grad():
        return to_torch(network, weights).eval()(*inputs)


@SLOW
@given(RANDOM_NETWORKS)
def test_identities_after_every_layer_change_no_output(made: Made) -> None:
    model, network, example = made
    (variant,) = constructed(network, 'a["*"].insert = IDENTITY')
    assert len(variant.network) == 2 * len(network) - sum(node.kind == "OUTPUT" for node in network.nodes)
    assert torch.equal(run(variant.network, state(model), example), run(network, state(model), example))
    with torch.no_grad():
        assert torch.equal(run(variant.network, state(model), example), model(example))


@SLOW
@given(RANDOM_NETWORKS, st.data())
def test_an_identity_that_is_deleted_again_leaves_the_network(made: Made, data: st.DataObject) -> None:
    _, network, _ = made
    names = Counter(name for each in NamedLayers(network).names.values() for name in set(each))
    # The second addition of a traced network is `add_1`, and `add` is the name of both.
    after = data.draw(st.sampled_from([n.id for n in network.nodes if n.kind != "OUTPUT" and names[n.id] == 1]))
    selector = after.replace("\\", "\\\\").replace("[", "\\[").replace("*", "\\*").replace("?", "\\?")
    (inserted,) = constructed(network, f'a["{selector}"].insert = IDENTITY("between")')
    (deleted,) = constructed(inserted.network, 'a["between"].delete')
    before = infer_shapes(network)
    assert deleted.network.by_id == before.by_id
    assert {(e.source, e.target, e.position) for e in deleted.network.edges} == {
        (e.source, e.target, e.position) for e in before.edges
    }


@SLOW
@given(RANDOM_NETWORKS, st.data())
def test_a_slice_and_the_rest_give_the_same_output_when_they_are_joined(made: Made, data: st.DataObject) -> None:
    """The first part is any set of layers that has what its layers need; the second takes what the first gives."""
    model, network, example = made
    order = [id for id in network.order if network.by_id[id].kind not in ("INPUT", "OUTPUT")]
    wanted = set(data.draw(st.lists(st.sampled_from(order), min_size=1, max_size=4)))
    first = {node.id for node in network.inputs}
    for id in reversed(network.order):
        if id in wanted:
            wanted |= set(network.sources[id])
    first |= wanted
    rest = [id for id in order if id not in first]
    bridge = [id for id in network.order if id in first and set(network.targets[id]) - first]
    weights = state(model)
    start = network.slice([node.id for node in network.inputs], bridge)
    given_ = run(start, weights, example)
    values = dict(zip(bridge, given_ if isinstance(given_, tuple) else (given_,), strict=True))
    if not rest:
        assert torch.equal(values[bridge[0]], run(network, weights, example))
        return
    begin = [
        id for id in [*rest, *(n.id for n in network.nodes if n.kind == "OUTPUT")] if set(network.sources[id]) & first
    ]
    end = network.slice(begin, [node.id for node in network.nodes if node.kind == "OUTPUT"])
    assert {node.id for node in end.inputs} <= set(bridge)
    assert torch.equal(run(end, weights, *(values[node.id] for node in end.inputs)), run(network, weights, example))
