"""Bounds hold: whatever the unread bytes are, the model's float32 results are inside the bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from evaluated_models import (
    Attending,
    Gated,
    Joined,
    Residual,
    Squared,
    answer,
    boxes,
    completed,
    read,
    stir,
    weights,
    worst,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regatta import network
from regatta.network.bounds import Ball, BoundedNetwork, NotBounded, balls, between
from regatta.network.bounds.traces import Back, Trace
from regatta.network.bounds.windows import adaptive, sliding

pytestmark = pytest.mark.usefixtures("one_thread")
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "leaky": nn.LeakyReLU, "leaky half": lambda: nn.LeakyReLU(0.5), "elu": nn.ELU,
    "elu steep": lambda: nn.ELU(2.5), "celu": lambda: nn.CELU(0.7), "selu": nn.SELU, "gelu": nn.GELU,
    "gelu tanh": lambda: nn.GELU("tanh"), "silu": nn.SiLU, "mish": nn.Mish, "sigmoid": nn.Sigmoid,
    "log sigmoid": nn.LogSigmoid, "hard sigmoid": nn.Hardsigmoid, "hard swish": nn.Hardswish, "tanh": nn.Tanh,
    "softplus": nn.Softplus, "softsign": nn.Softsign, "relu6": nn.ReLU6, "hardtanh": nn.Hardtanh,
}  # fmt: skip
IMAGES: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv2d(4, 6, 3),
    "stride, padding": lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), bias=False),
    "groups, dilation": lambda: nn.Conv2d(4, 8, 2, groups=2, dilation=2),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, padding="same", groups=4),
    "even kernel, same": lambda: nn.Conv2d(4, 5, 2, padding="same"),
    "max": lambda: nn.MaxPool2d(2),
    "max overlapping": lambda: nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
    "max dilated": lambda: nn.MaxPool2d(2, stride=1, dilation=2),
    "avg": lambda: nn.AvgPool2d(2),
    "avg padded": lambda: nn.AvgPool2d(3, stride=2, padding=1),
    "avg padded, not counted": lambda: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
    "avg ceil": lambda: nn.AvgPool2d(2, stride=2, ceil_mode=True),
    "adaptive avg": lambda: nn.AdaptiveAvgPool2d((3, 2)),
    "adaptive max": lambda: nn.AdaptiveMaxPool2d(3),
    "adaptive wider": lambda: nn.AdaptiveAvgPool2d(9),
    "batch norm": lambda: nn.BatchNorm2d(4),
    "batch norm plain": lambda: nn.BatchNorm2d(4, affine=False),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "instance norm": lambda: nn.InstanceNorm2d(4, affine=True),
    "layer norm": lambda: nn.LayerNorm([4, 7, 7]),
    "residual": lambda: Residual(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())),
    "joined": lambda: Joined(nn.Conv2d(4, 3, 3), nn.Conv2d(4, 2, 3)),
    "gated": lambda: Gated(4),
    "zero pad": lambda: nn.ZeroPad2d((1, 2, 0, 1)),
    "constant pad": lambda: nn.ConstantPad2d(1, 0.7),
    "dropout": lambda: nn.Dropout(0.5),
}


def check(net: nn.Module, x: torch.Tensor, seed: int = 0, planes: int = 2) -> BoundedNetwork:
    """Random completions of the weights stay inside the balls, and their margins above the lower bounds."""
    stir(net, seed)
    rng, known = np.random.default_rng(seed), weights(net)
    bounded = BoundedNetwork(read(net, x[:1]), boxes(known, planes))
    passed = bounded.forward(x.numpy())
    classes = passed.logits.shape[1]
    rows, better, worse = (part.reshape(-1) for part in np.indices((len(x), classes, classes)))
    margins = {whole: bounded.margins(passed, rows, better, worse, whole).least for whole in (False, True)}
    drawn = [completed(known, planes, rng, corners) for corners in (True, False)]
    for values in (known, worst(net, known, planes, x.numpy()), *drawn):
        logits = answer(net, values, x.numpy())
        assert np.all(logits >= passed.logits.low), np.max(passed.logits.low - logits)
        assert np.all(logits <= passed.logits.high), np.max(logits - passed.logits.high)
        for least in margins.values():
            assert np.all(logits[rows, better] - logits[rows, worse] >= least)
    finite = np.isfinite(passed.logits.radius)
    assert finite.all()  # nothing is proved by bounds that say nothing
    return bounded


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("planes", [1, 2, 3])
def test_activations_stay_between_their_lines(name: str, planes: int) -> None:
    if planes == 1 and name not in ("relu", "tanh", "gelu", "hard swish", "elu steep"):
        return  # one byte is the exponent alone: these wide intervals are enough
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 8), ACTIVATIONS[name](), nn.Linear(8, 8), ACTIVATIONS[name](), nn.Linear(8, 3))
    check(net, 3 * torch.randn(5, 6), planes=planes)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "mish", "hard swish", "softplus", "elu steep", "sigmoid"])
def test_lines_hold_everywhere_between_the_ends(name: str) -> None:
    """Every interval of a grid, narrow and wide, on a dense set of points of it."""
    from regatta.network.bounds.activations import _CURVES, _image, _linear_bounds, _rectifier_bounds, _rectifier_slope
    from regatta.network.bounds.balls import between

    node = next(n for n in read(nn.Sequential(ACTIVATIONS[name]()), torch.zeros(1, 2)).nodes if n.kind in _CURVES)
    curve, slope = _CURVES[node.kind](node), _rectifier_slope(node)
    starts, widths = np.meshgrid(np.linspace(-7, 7, 113), [1e-9, 1e-4, 0.01, 0.3, 1, 2.5, 9])
    ball = between(starts, starts + widths)
    lines = _rectifier_bounds(ball, slope) if slope is not None else _linear_bounds(curve, ball)
    image = _image(curve, ball)
    for part in np.linspace(0, 1, 101):
        z = starts + part * widths
        value = curve.value(z)
        assert np.all(lines.low_slope * z + lines.low - lines.cushion <= value)
        assert np.all(lines.high_slope * z + lines.high + lines.cushion >= value)
        assert np.all((image.low <= value) & (value <= image.high))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", IMAGES)
def test_a_layer_for_images_keeps_its_bounds(name: str) -> None:
    torch.manual_seed(5)
    inner = nn.Sequential(nn.Conv2d(2, 4, 2), nn.ReLU(), IMAGES[name](), nn.Flatten())
    example = 1.5 * torch.randn(3, 2, 8, 8)
    features = inner(example).shape[1]
    check(nn.Sequential(*inner, nn.Linear(features, 4)), example)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Sequential(nn.Conv1d(3, 4, 3, 2), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(12, 3)), (3, 14)),
        (nn.Sequential(nn.Conv3d(1, 3, 2), nn.Tanh(), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(3, 3)), (1, 3, 3, 3)),
        (nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.Flatten(), nn.Linear(24, 3)), (4, 5)),
        (nn.Sequential(nn.Linear(5, 6), nn.RMSNorm(6), nn.Flatten(), nn.Linear(24, 3)), (4, 5)),
        (nn.Sequential(Attending(5), nn.Flatten(), nn.Linear(20, 3)), (4, 5)),
        (nn.Sequential(nn.Linear(5, 6), nn.Softmax(-1), nn.Linear(6, 3)), (5,)),
    ],
    ids=["1d", "3d", "layer norm", "rms norm", "attention", "softmax inside"],
)  # fmt: skip
def test_other_ranks_and_layers_of_transformers_keep_their_bounds(net: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    check(net, torch.randn(4, *shape))


def test_embeddings_look_up_boxes() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    check(net, torch.randint(0, 11, (6, 3)))


def _drawn(rng: np.random.Generator) -> tuple[nn.Module, torch.Tensor]:
    """A network of layers drawn at random, some of them in residuals and side by side."""
    channels, layers = int(rng.integers(1, 4)), []
    example = torch.from_numpy(rng.normal(0, 1, (3, channels, 7, 7)).astype("f4"))
    for _ in range(int(rng.integers(1, 5))):
        choice, more = int(rng.integers(8)), int(rng.integers(1, 5))
        if choice < 2:
            layers.append(nn.Conv2d(channels, more, int(rng.integers(1, 4)), padding=1, stride=int(rng.integers(1, 3))))
            channels = more
        elif choice == 2:
            layers.append(Residual(nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.SiLU())))
        elif choice == 3:
            layers.append(Joined(nn.Conv2d(channels, 2, 1), nn.Sequential(nn.Conv2d(channels, 1, 1), nn.Tanh())))
            channels = 3
        elif choice == 4:
            layers.append(nn.BatchNorm2d(channels))
        elif choice == 5:
            layers.append((nn.MaxPool2d, nn.AvgPool2d)[int(rng.integers(2))](2, stride=1))
        elif choice == 6:
            layers.append(Gated(channels))
        layers.append(list(ACTIVATIONS.values())[int(rng.integers(len(ACTIVATIONS)))]())
    with torch.no_grad():
        features = nn.Flatten()(nn.Sequential(*layers).eval()(example)).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 3)), example


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 2, 3, 4]))
def test_random_networks_keep_their_bounds(seed: int, planes: int) -> None:
    torch.manual_seed(seed)
    net, example = _drawn(np.random.default_rng(seed))
    check(net, example, seed, planes)


def test_bounds_become_narrower_with_more_planes() -> None:
    torch.manual_seed(4)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10), nn.ReLU(), nn.Linear(10, 3)
    )
    x, known = torch.randn(6, 1, 8, 8), weights(net)
    rows, better, worse = np.arange(6), np.zeros(6, int), np.ones(6, int)
    logits, widths = answer(net, known, x.numpy()), []
    for planes in (2, 3, 4):
        bounded = BoundedNetwork(read(net, x[:1]), boxes(known, planes))
        passed = bounded.forward(x.numpy())
        gaps = [
            logits[:, 0] - logits[:, 1] - bounded.margins(passed, rows, better, worse, w).least for w in (False, True)
        ]
        assert np.all(gaps[1] < gaps[0])  # going back through the network is worth it
        widths.append(float(gaps[1].max()))
    assert widths[1] < widths[0] / 50
    assert widths[2] < 1e-4


def test_costs_name_the_tensors_that_are_not_fully_known() -> None:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    known = weights(net)
    some = {**boxes(known, 4), "0.weight": boxes(known, 2)["0.weight"]}
    bounded = BoundedNetwork(read(net, torch.zeros(1, 4)), some)
    passed = bounded.forward(np.ones((1, 4), "f4"))
    costs = bounded.margins(passed, np.zeros(1, int), np.zeros(1, int), np.ones(1, int), whole=True).costs
    assert max(costs, key=lambda name: costs[name].sum()) == "0.weight"
    assert set(costs) == set(known)


@pytest.mark.parametrize(
    ("net", "shape", "reason"),
    [
        (nn.Sequential(nn.ConvTranspose2d(1, 2, 2), nn.Flatten(), nn.Linear(32, 2)), (1, 3, 3), "transposed"),
        (nn.Sequential(nn.Conv2d(1, 2, 2, padding=1, padding_mode="reflect"), nn.Flatten()), (1, 3, 3), "reflect"),
        (nn.Sequential(nn.LocalResponseNorm(2), nn.Flatten(), nn.Linear(18, 2)), (2, 3, 3), "local"),
        (nn.Sequential(nn.PReLU(), nn.Linear(3, 2)), (3,), "PRELU"),
    ],
)  # fmt: skip
def test_a_layer_without_bounds_is_named(net: nn.Module, shape: tuple[int, ...], reason: str) -> None:
    example = torch.zeros(1, *shape)
    with pytest.raises(NotBounded, match=reason):
        BoundedNetwork(read(net, example), boxes(weights(net), 2)).forward(example.numpy())


def test_numbers_beyond_float32_are_not_known() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    known = weights(net)
    bounded = BoundedNetwork(read(net, torch.zeros(1, 2)), boxes(known, 2))
    passed = bounded.forward(np.array([[1.0, 1.0], [3e38, -3e38], [np.nan, 0.0], [np.inf, 0.0]], "f4"))
    assert passed.known.tolist() == [True, False, False, False]
    margins = bounded.margins(passed, np.arange(4), np.zeros(4, int), np.ones(4, int), whole=True)
    assert margins.least[1:].tolist() == [-np.inf] * 3


@pytest.mark.parametrize("case", [((9,), (3,), (2,), (1,), (1,)), ((6, 5), (2, 3), (1, 2), (0, 1), (2, 1))])
def test_scatter_is_the_transpose_of_gather(case: Any) -> None:
    windows, rng = sliding(*case), np.random.default_rng(0)
    x, y = rng.normal(size=(2, windows.size)), rng.normal(size=(2, *windows.taps.shape))
    assert np.isclose((windows.gather(x) * y).sum(), (x * windows.scatter(y)).sum())
    x, y = rng.normal(size=(3, 2, windows.size)), rng.normal(size=(3, len(windows.taps), 2, windows.taps.shape[1]))
    assert np.isclose((windows.unfold(x) * y).sum(), (x * windows.fold(y)).sum())


def test_adaptive_windows_are_those_of_pytorch() -> None:
    for size, count in ((7, 3), (5, 5), (4, 7), (1, 2)):
        windows = adaptive((size,), (count,))
        x = np.random.default_rng(size).normal(size=(1, 1, size))
        ours = windows.gather(x).sum(-2) / windows.inside.sum(0)
        theirs = nn.functional.adaptive_avg_pool1d(torch.from_numpy(x), count).numpy()
        assert np.allclose(ours, theirs)


ONE_BY_ONE: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "max": (nn.MaxPool2d(2), (2, 4, 4)),
    "max overlapping": (nn.MaxPool2d(3, stride=1, padding=1), (2, 4, 4)),
    "avg": (nn.AvgPool2d(3, stride=2, padding=1), (2, 5, 5)),
    "batch norm": (nn.BatchNorm2d(3), (3, 2, 2)),
    "layer norm": (nn.LayerNorm(6), (2, 6)),
    "rms norm": (nn.RMSNorm(6), (2, 6)),
    "group norm": (nn.GroupNorm(2, 4), (4, 3)),
    "gated": (Gated(3), (3, 2, 2)),
    "residual": (Residual(nn.Tanh()), (5,)),
    "conv": (nn.Conv1d(4, 6, 3, padding=2, groups=2, dilation=2), (4, 6)),
    "softmax": (nn.Softmax(-1), (2, 5)),
    "product": (Squared(), (3, 4)),
    "attention": (Attending(5), (3, 5)),
    "norm of a sum": (nn.Sequential(Residual(nn.Linear(5, 5)), nn.LayerNorm(5), nn.Linear(5, 6), nn.GELU()), (3, 5)),
    "attention and norm": (nn.Sequential(nn.Linear(4, 6), Residual(Attending(6)), nn.LayerNorm(6)), (3, 4)),
}


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("width", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_backward_bounds_of_a_layer_hold_over_its_whole_box(name: str, width: float, tight: bool) -> None:
    """With operands anywhere in a wide box and any coefficients, no product is below the backward bound."""
    torch.manual_seed(7)
    net, shape = ONE_BY_ONE[name]
    rng = np.random.default_rng(8)
    stir(net, 1)
    bounded = BoundedNetwork(read(net, torch.zeros(1, *shape)), boxes(weights(net), 4))
    low = rng.normal(size=(1, *shape)).astype("f4")
    high = low + (width * rng.random((1, *shape))).astype("f4")
    ball = balls.between(low, high)
    if tight and not bounded.bent:
        return
    given_id, passed = bounded.network.inputs[0].id, bounded.forward_from(Trace(ball, given_back(ball)), 1, tight)
    for _ in range(30):
        a = rng.normal(size=(8, *passed.logits.shape[1:]))
        one = rng.integers(a[0].size, size=(6, 1))
        a[:6] *= (np.arange(a[0].size) == one).reshape(a[:6].shape)  # nothing hides behind what else is summed
        least = bounded.take_back(a, passed, np.zeros(8, int), whole=True).least
        for _ in range(20):
            part = rng.integers(0, 2, low.shape) if rng.random() < 0.7 else rng.random(low.shape)
            x = np.clip((low + part * (high - low)).astype("f4"), low, high)
            y = answer(net, weights(net), x)
            inside = (passed.logits.low <= y) & (y <= passed.logits.high)
            assert inside.all() or not passed.known[0]
            assert np.all((a * y).reshape(8, -1).sum(1) >= least - 1e-12), given_id


def given_back(ball: Ball) -> Callable[..., Back]:
    return lambda a, rows: Back((), balls.lower_bound(a, ball.centre[rows], ball.radius[rows]))


def test_rounding_of_float32_sums_stays_inside_the_bounds() -> None:
    """Long sums that cancel have larger errors than in float64. The bounds allow for that, in any order."""
    torch.manual_seed(0)
    net, x = nn.Linear(6000, 3), torch.randn(40, 6000) * 100
    bounded = BoundedNetwork(read(net, x[:1]), boxes(weights(net), 4))
    passed = bounded.forward(x.numpy())
    exact = x.double() @ net.weight.double().T + net.bias.double()
    off = np.abs(answer(net, weights(net), x.numpy()) - exact.detach().numpy())
    backwards = net(x) * 0 + (x.flip(1) @ net.weight.flip(1).T + net.bias)
    assert off.max() > 1e-5  # there is something to expect
    assert np.all(off <= passed.logits.radius)
    assert np.all(np.abs(backwards.detach().double().numpy() - passed.logits.centre) <= passed.logits.radius)


def test_max_pooling_bounds_allow_any_element_to_be_the_maximum() -> None:
    net = nn.MaxPool1d(2)
    ball = balls.between(np.array([[[0.0, -1.0]]]), np.array([[[1.0, 0.3]]]))
    bounded = BoundedNetwork(read(net, torch.zeros(1, 1, 2)), {})
    passed = bounded.forward_from(Trace(ball, given_back(ball)), 1)
    a = np.array([[[-1.0]], [[1.0]]])
    back = passed.traces[bounded.network.order[1]].back
    assert back is not None
    found = back(a, np.zeros(2, int))
    assert found.parts[0] is not None
    for one in np.linspace(0, 1, 11):
        for other in np.linspace(-1, 0.3, 14):
            values = (found.parts[0] * np.array([one, other])).sum((1, 2)) + found.constant
            assert np.all(a[:, 0, 0] * max(one, other) >= values - 1e-12)
    assert found.parts[0][0].tolist() == [[-1.0, 0.0]]  # the leader and a little more, not the ceiling


def boxes_of_leading_planes(module: nn.Module, planes: int) -> dict[str, Any]:
    """Boxes of float32 weights whose leading bytes are known, as many as `planes`."""
    unknown = np.uint32(2 ** (8 * (4 - planes)) - 1)
    boxes = {}
    for name, tensor in module.state_dict().items():
        if tensor.dtype == torch.float32:
            bits = tensor.numpy().view(np.uint32)
            ends = (bits & ~unknown).view(np.float32), (bits | unknown).view(np.float32)
            boxes[name] = between(np.minimum(*ends), np.maximum(*ends))
    return boxes


def check_network_bounds(module: nn.Module, x: np.ndarray, planes: int) -> None:
    """The outputs are inside their balls, and no margin is greater than it is."""
    module.eval()
    bounded = BoundedNetwork(
        network.from_torch(module, torch.from_numpy(x[:2])), boxes_of_leading_planes(module, planes)
    )
    passed = bounded.forward(x)
    with torch.no_grad():
        outputs = module(torch.from_numpy(x)).double().numpy()
    inside = (passed.logits.low <= outputs) & (outputs <= passed.logits.high)
    assert inside[passed.known].all()
    rows, better = np.arange(len(x)), outputs.argmax(axis=1)
    for whole in (False, True):
        worse = (better + 1) % outputs.shape[1]
        gaps = outputs[rows, worse] - outputs[rows, better]
        least = bounded.margins(passed, rows, worse, better, whole).least
        assert not (least[passed.known] > gaps[passed.known]).any()


class SoftmaxModule(nn.Module):
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.first, self.last, self.axis = nn.Linear(1, 2), nn.Linear(2, 2), axis

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(torch.softmax(self.first(x), self.axis))


def test_softmax_of_a_wide_and_a_narrow_interval_keeps_its_lower_bound() -> None:
    module = SoftmaxModule(1)
    with torch.no_grad():
        module.first.weight.copy_(torch.tensor([[6656.0], [0.0]]))  # the least number with these two leading bytes
        module.first.bias.copy_(torch.tensor([-13312.0, 0.0]))
        module.last.weight.copy_(torch.eye(2))
        module.last.bias.zero_()
    x = (2 + np.linspace(-0.01, 0.02, 200)).astype(np.float32)[:, None]
    check_network_bounds(module, x, 2)


def test_softmax_over_the_batch_is_not_bounded() -> None:
    module, x = SoftmaxModule(0), np.ones((3, 1), np.float32)
    read = network.from_torch(module, torch.from_numpy(x))
    with pytest.raises(NotBounded, match="over the batch"):
        BoundedNetwork(read, boxes_of_leading_planes(module, 2)).forward(x)


def test_batch_normalisation_with_a_tiny_scale_keeps_its_bounds() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2, eps=0.0))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([4.2e-45, 2.8e-45]))
        module[0].running_var.copy_(torch.tensor([25.0, 1.69]))
    x = np.random.default_rng(0).uniform(1e35, 1e36, (50, 2)).astype(np.float32)
    check_network_bounds(module, x, 4)


def test_mean_of_a_window_whose_sum_overflows_is_not_known() -> None:
    module = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(2, 3))
    x = np.full((2, 2, 8, 8), 9e36, np.float32)
    x[0] = 1.0
    bounded = BoundedNetwork(network.from_torch(module, torch.from_numpy(x)), boxes_of_leading_planes(module, 2))
    assert bounded.forward(x).known.tolist() == [True, False]
