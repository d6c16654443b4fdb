"""Statistics lie within their bounds, and histograms from half of the bytes equal those from all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from regatta.repo.inspect.distributions import (
    Histogram,
    Interval,
    count_magnitudes,
    describe_tensor,
    distance,
    histogram,
    histogram_distance,
)
from regatta.store.format.planes import leading
from regatta.store.format.tensor_id import as_tensor
from regatta.store.slices import PartialTensor

FLOATS = ("float64", "float32", "float16")


def partly(array: Any, planes: int = 2) -> PartialTensor:
    """What is known of an array, when this number of its planes is read."""
    tensor = as_tensor("x", array)
    known = min(planes, tensor.dtype.planes)
    words = leading(tensor.words, known, tensor.dtype)
    return PartialTensor(tensor.dtype, tensor.shape, known, words.reshape(tensor.shape) if tensor.shape else words)


def whole(array: Any) -> PartialTensor:
    return partly(array, 99)


def holds(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def counted(array: NDArray[Any], width: float) -> dict[int, int]:
    """The definition of the bins: floor of the magnitude, mirrored for negative numbers."""
    found: dict[int, int] = {}
    for value in array.ravel().tolist():
        step = math.floor(abs(value) / width)
        place = -1 - step if math.copysign(1, value) < 0 else step
        found[place] = found.get(place, 0) + 1
    return found


numbers = st.sampled_from(FLOATS).flatmap(
    lambda dtype: arrays(
        dtype,
        array_shapes(max_dims=2, max_side=40),
        elements=st.floats(-50, 50, width=int(dtype[5:])),  # type: ignore[arg-type]
    )
)


@settings(max_examples=60, deadline=None)
@given(numbers)
def test_statistics_lie_within_their_bounds(array: NDArray[Any]) -> None:
    found, exact = describe_tensor("x", partly(array)), array.astype(np.float64)
    assert holds(found.least, exact.min())
    assert holds(found.greatest, exact.max())
    largest = float(abs(exact).max()) or 1.0
    deviation = float((exact / largest).std()) * largest  # NumPy's squares of tiny numbers vanish
    scale = largest * 1e-12
    for interval, value in ((found.mean, exact.mean()), (found.deviation, deviation)):
        assert interval.low - scale <= value <= interval.high + scale  # what NumPy's own sum is off by
    norm = math.hypot(*exact.ravel().tolist())  # squares of tiny numbers would vanish
    assert found.norm.low * (1 - 1e-15) <= norm <= found.norm.high * (1 + 1e-15)


@settings(max_examples=60, deadline=None)
@given(numbers)
def test_histograms_of_leading_planes_are_exact(array: NDArray[Any]) -> None:
    found = histogram(count_magnitudes(partly(array)))
    assert found == histogram(count_magnitudes(whole(array)))
    by_hand = counted(array, found.width)
    inside = {found.first + place: count for place, count in enumerate(found.counts) if count}
    beyond = {place: count for place, count in by_hand.items() if place not in inside}
    assert {place: count for place, count in by_hand.items() if place in inside} == inside
    assert sum(beyond.values()) == found.below + found.above
    assert sum(found.counts) + found.below + found.above == array.size


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_distances_lie_within_their_bounds(data: st.DataObject) -> None:
    a = data.draw(numbers)
    b = a + data.draw(arrays(a.dtype, a.shape, elements=st.floats(-1, 1, width=16)))
    found = distance(partly(a), partly(b))
    exact = math.sqrt(math.fsum((float(x) - float(y)) ** 2 for x, y in zip(a.ravel(), b.ravel(), strict=True)))
    assert found.low * (1 - 1e-15) <= exact <= found.high * (1 + 1e-15)
    known = distance(whole(a), whole(b))
    assert known.middle == pytest.approx(exact, rel=1e-9)


def test_bounds_from_two_bytes_are_narrow() -> None:
    """Two bytes of a float32 determine it to one part in 128 at worst."""
    array = np.random.default_rng(0).normal(size=10_000).astype("f4")
    found = describe_tensor("x", partly(array))
    assert found.planes == 2 and not found.exact
    assert found.norm.high / found.norm.low < 1 + 1 / 127
    assert found.deviation.high - found.deviation.low < 0.01
    assert found.mean.high - found.mean.low < 0.01


def test_statistics_of_fully_read_tensors_are_exact() -> None:
    array = np.random.default_rng(0).normal(size=5000).astype("f4")
    found = describe_tensor("x", whole(array))
    assert found.exact
    assert found.mean.exact and found.mean.low == pytest.approx(array.astype("f8").mean(), rel=1e-12)
    assert found.deviation.low == pytest.approx(array.astype("f8").std(), rel=1e-12)
    assert (found.least.low, found.greatest.high) == (array.min(), array.max())


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    found = describe_tensor("x", partly(np.array([1.0, np.nan, np.inf, -np.inf, -3.0], "f4")))
    assert found.nonfinite == 3
    assert found.least.low == found.least.high == -3.0 or holds(found.least, -3.0)
    assert sum(found.histogram.counts) == 2


@pytest.mark.parametrize("value", [np.zeros(7, "f4"), np.zeros(0, "f4"), np.float32(3), np.full(3, np.nan, "f4")])
def test_unusual_tensors_are_described(value: Any) -> None:
    found = describe_tensor("x", partly(value))
    assert found.count == np.size(value)
    assert found.row()["name"] == "x"
    assert isinstance(found.histogram.drawn(), str)


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", "uint16", "bool", "int32"])
def test_integers_are_known_exactly(dtype: str) -> None:
    array = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, 300).astype(dtype)
    found = describe_tensor("x", whole(array))
    assert found.mean.middle == pytest.approx(array.mean())
    assert (found.least.low, found.greatest.high) == (array.min(), array.max())


def test_numbers_that_float64_barely_holds_do_not_overflow() -> None:
    array = np.array([1e300, -1e300, 1e-300], "f8")
    found = describe_tensor("x", partly(array))
    assert holds(found.norm, math.sqrt(2) * 1e300) and math.isfinite(found.norm.high)
    apart = distance(partly(array), partly(-array))
    assert holds(apart, 2 * math.sqrt(2) * 1e300)


def test_an_outlier_does_not_flatten_the_histogram() -> None:
    array = np.random.default_rng(0).normal(size=10_000).astype("f4")
    array[0] = 1e6
    found = histogram(count_magnitudes(partly(array)))
    assert found.above == 1
    assert len(found.counts) > 16


def test_histogram_distance_is_0_for_equal_and_near_1_for_disjoint_values() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=20_000).astype("f4"), rng.normal(size=20_000).astype("f4")
    assert histogram_distance(count_magnitudes(partly(one)), count_magnitudes(partly(one))) == 0
    assert histogram_distance(count_magnitudes(partly(one)), count_magnitudes(partly(other))) < 0.05
    assert histogram_distance(count_magnitudes(partly(one)), count_magnitudes(partly(abs(other) + 8))) > 0.95


def test_a_histogram_in_a_line_of_text() -> None:
    assert Histogram(1.0, 0, (1, 4, 8)).drawn() == "▁▄█"
    assert Histogram(1.0, 0, tuple(range(100))).drawn(10).endswith("█")
    assert len(Histogram(1.0, 0, (1,) * 100).drawn(24)) <= 24
    assert str(Interval(1.0, 1.0)) == "1" and str(Interval(0.9, 1.1)) == "1±0.1"
