"""Labels of a transformer that are certain from two bytes of its weights, and labels from the weights in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluated_models import Transformer, answer, boxes, completed, read, weights, worst
from sklearn.datasets import load_digits
from torch import nn

from regatta import network
from regatta.network.bounds import BoundedNetwork
from regatta.repo import Repo
from regatta.repo.evaluate.progress import judge

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Any, Any]:
    """A transformer that has learnt scikit-learn's digits as sequences of rows, and the images that it has not seen."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x, y = (images[order] / 16).astype("f4").reshape(-1, 8, 8), labels[order].astype(np.int64)
    torch.manual_seed(0)
    net = Transformer()
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3, weight_decay=0.05)
    for _ in range(10):
        for at in range(360, len(x) - 63, 64):
            optimizer.zero_grad()
            inputs, targets = torch.from_numpy(x[at : at + 64]), torch.from_numpy(y[at : at + 64])
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
    return net.eval(), x[:360], y[:360]


def commit(repo: Repo, net: nn.Module, x: Any) -> str:
    return repo.commit("digits", weights(net), network=network.to_json(read(net, torch.from_numpy(x[:1])))).reference


@pytest.mark.parametrize("planes", [1, 2])
def test_labels_of_leading_bytes_are_those_of_the_weights_in_the_middle(
    tmp_path: Path, digits: Any, planes: int
) -> None:
    net, x, y = digits
    known = weights(net)
    with Repo.init(tmp_path) as repo:
        reference = commit(repo, net, x)
        read_so_far = repo.weights(reference).read(list(known), planes)
        found = repo.evaluate(reference, x[:24], y[:24], precision=planes)
    values = {name: sum(value.bounds).astype("f4") / 2 for name, value in read_so_far.items()}
    expected, right = answer(net, values, x[:24]).argmax(1), answer(net, known, x[:24]).argmax(1)
    assert np.array_equal(found.labels, expected)
    assert found.fallback is None
    assert np.array_equal(found.labels[found.certain], right[found.certain])
    assert found.certain.mean() >= (0.5 if planes == 2 else 0.0)


def test_no_completion_of_the_unread_bytes_contradicts_a_certificate(digits: Any) -> None:
    check_certificates(digits, inputs=8, draws=60)


@pytest.mark.slow
def test_no_completion_contradicts_many_certificates(digits: Any) -> None:
    check_certificates(digits, inputs=120, draws=3000)


def check_certificates(digits: Any, inputs: int, draws: int) -> None:
    net, x, _ = digits
    x, known, rng = x[:inputs], weights(net), np.random.default_rng(3)
    within = boxes(known, 2)
    outputs = answer(net, {name: box.centre.astype("f4") for name, box in within.items()}, x)
    bounded = BoundedNetwork(read(net, torch.from_numpy(x[:1])), within)
    found = judge(bounded, x, outputs, 1, tight=True)
    assert found.sure.mean() >= 0.5
    sure, labels = x[found.sure], found.labels[found.sure, 0]
    drawn = (completed(known, 2, rng, corners=draw % 2 == 0) for draw in range(draws))
    hostile = (worst(net, known, 2, sure[at : at + 1]) for at in range(len(sure)))
    for values in (*drawn, *hostile, known):
        assert np.array_equal(answer(net, values, sure).argmax(1), labels)
    answer(net, known, x[:1])  # the model is shared: it gets its own weights back
