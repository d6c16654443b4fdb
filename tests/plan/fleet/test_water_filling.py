"""Allocations of devices: each running model has at least one, no device has two, and no policy beats the bound."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.errors import RegattaError, UsageError
from regatta.plan.fleet.convergence import EpochBounds
from regatta.plan.fleet.nodes import Nodes
from regatta.plan.fleet.policies import Changes, FleetModel, FleetView
from regatta.plan.fleet.rates import GeometricRates
from regatta.plan.fleet.simulate import FleetSchedule, GroundTruth, malleable_bound, simulate
from regatta.plan.fleet.water_filling import WaterFilling, fill
from regatta.plan.papers.fleet_policies import FleetG, FleetL, OneDevice
from regatta.plan.papers.fleet_suite import POLICIES, SUITES, make_policy


def tasks(*singles: float, rows: int = 100, bounds: EpochBounds | None = None, inside: float = 1.0) -> list[FleetModel]:
    made = bounds or EpochBounds(1, 10)
    return [
        FleetModel(f"m{i}", GeometricRates(single, inside, inside, 1.0, 4), rows, made)
        for i, single in enumerate(singles)
    ]


def check(view: FleetView) -> None:
    """Invariants after each decision."""
    held = [device for group in view.groups.values() for device in group]
    assert len(held) == len(set(held)), "a device has two models"
    assert all(view.groups.values()), "a model runs without a device"
    assert view.free.isdisjoint(held)
    assert view.free | set(held) == set(range(view.nodes.device_count))
    assert not set(view.groups) & set(view.waiting)


problems = st.tuples(
    st.lists(st.tuples(st.floats(5, 200), st.integers(2, 9)), min_size=1, max_size=9),
    st.integers(1, 14),
    st.integers(1, 5),
    st.sampled_from((0.0, 3.0, 40.0)),
    st.floats(0.85, 1.0),
)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(problems)
def test_every_policy_is_valid_and_no_faster_than_the_bound(
    name: str, problem: tuple[list[tuple[float, int]], int, int, float, float]
) -> None:
    drawn, devices, each, restart, inside = problem
    made = [
        FleetModel(f"m{i}", GeometricRates(single, inside, inside, 0.95, each), 50, EpochBounds(2, 9))
        for i, (single, _) in enumerate(drawn)
    ]
    nodes, truth = Nodes.uniform(devices, each), GroundTruth([epochs for _, epochs in drawn])
    found = simulate(make_policy(name), made, nodes, truth, restart=restart, after=check)
    assert set(found.ends) == {task.name for task in made}
    assert found.makespan >= malleable_bound(made, nodes, truth) * (1 - 1e-9)
    no_overlap(found)
    assert 0 < found.utilisation <= 1 + 1e-9


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(problems, st.sampled_from((1, 2, 4)))
def test_water_filling_changes_models_only_at_their_stops(
    problem: tuple[list[tuple[float, int]], int, int, float, float], stops: int
) -> None:
    drawn, devices, each, restart, inside = problem
    made = [
        FleetModel(f"m{i}", GeometricRates(single, inside, inside, 0.95, each), 50, EpochBounds(2, 9))
        for i, (single, _) in enumerate(drawn)
    ]
    nodes, truth = Nodes.uniform(devices, each), GroundTruth([epochs for _, epochs in drawn])
    found = simulate(WaterFilling(), made, nodes, truth, restart=restart, stops=stops, after=check)
    assert found.makespan >= malleable_bound(made, nodes, truth) * (1 - 1e-9)
    no_overlap(found)


def no_overlap(found: FleetSchedule) -> None:
    by_device: dict[int, list[tuple[float, float]]] = {}
    for allocation in found.allocations:
        for device in allocation.devices:
            by_device.setdefault(device, []).append((allocation.start, allocation.end))
    for spans in by_device.values():
        spans.sort()
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(spans))


def test_one_device_by_hand() -> None:
    """Rates 10 and 5, 100 rows: epochs of 10 and 20 s; three and two of them, on one device each."""
    found = simulate(OneDevice(), tasks(10.0, 5.0), Nodes((2,)), GroundTruth([3, 2]))
    assert found.ends == pytest.approx({"m0": 30.0, "m1": 40.0})
    assert found.restarts == 0


def test_lockstep_goes_at_the_pace_of_the_slowest() -> None:
    """Two epochs each at 5 rows per second; then the slow one alone, at the same pace."""
    found = simulate(make_policy("homogeneous"), tasks(10.0, 5.0), Nodes((2,)), GroundTruth([2, 3]))
    assert found.ends == pytest.approx({"m0": 40.0, "m1": 60.0})


def test_a_flotilla_trains_until_too_few_devices_are_busy() -> None:
    """The first model to converge leaves 4/5 of the devices busy, which is alpha; the second ends the flotilla."""
    made = tasks(*[10.0] * 5)
    found = simulate(FleetG(alpha=0.8), made, Nodes((5,)), GroundTruth([1, 2, 3, 3, 3]), restart=7.0)
    assert found.ends["m0"] == pytest.approx(10.0)
    assert found.ends["m1"] == pytest.approx(20.0)
    assert found.rounds == 2
    assert found.restarts == 3
    widths = sorted(len(allocation.devices) for allocation in found.allocations if allocation.start > 0)
    assert widths == [1, 2, 2]
    assert found.makespan == pytest.approx(27.0 + 10.0)  # the model with one device sets the pace


def test_the_local_paradigm_uses_released_devices() -> None:
    """Three models of the same rate on two devices: the first to end makes room for the third."""
    found = simulate(FleetL(), tasks(10.0, 10.0, 10.0), Nodes((2,)), GroundTruth([1, 3, 1]))
    assert found.ends == pytest.approx({"m0": 10.0, "m1": 30.0, "m2": 20.0})


def test_filling_gives_the_next_device_to_the_model_that_ends_last() -> None:
    rates = np.array([[10.0, 20.0, 30.0, 40.0]] * 2)
    assert fill({0: 100.0, 1: 300.0}, {0: 1, 1: 1}, rates, 2) == {0: 1, 1: 3}
    assert fill({0: 100.0, 1: 300.0}, {0: 1, 1: 1}, np.array([[10.0, 20.0], [10.0, 10.0]]), 1) == {0: 1, 1: 1}


def test_water_filling_starts_with_the_widths_of_the_fluid_bound() -> None:
    found = simulate(
        WaterFilling(), tasks(10.0, 30.0, bounds=EpochBounds(4, 4)), Nodes((4,)), GroundTruth([4, 4]), restart=1.0
    )
    assert {allocation.model: len(allocation.devices) for allocation in found.allocations} == {"m0": 3, "m1": 1}
    assert found.makespan == pytest.approx(40 / 3)


@pytest.mark.parametrize(("restart", "restarts"), [(4.0, 1), (6.0, 0)])
def test_water_filling_changes_a_model_only_for_more_than_two_restarts(restart: float, restarts: int) -> None:
    """m0 ends after 10 s; m1 then needs 30 s on one device, 15 s on two: restarts of 4 s gain 11 s, of 6 s gain 9 s."""
    made = [
        FleetModel("m0", GeometricRates(10.0), 100, EpochBounds(1, 1)),
        FleetModel("m1", GeometricRates(10.0), 100, EpochBounds(4, 4)),
    ]
    found = simulate(WaterFilling(), made, Nodes((2,)), GroundTruth([1, 4]), restart=restart)
    assert found.restarts == restarts
    assert found.makespan == pytest.approx(10 + restart + 15 if restarts else 40.0)


def test_water_filling_makes_room_inside_a_node() -> None:
    """m3 has a device of node 0 and could have another only on node 1; m0, with time to spare, goes there instead."""
    made = [
        FleetModel(f"m{i}", GeometricRates(10.0, 1.0, 1.0, 0.5, 2), 100, EpochBounds(n, n))
        for i, n in enumerate((4, 2, 9, 20))
    ]
    view = FleetView(Nodes((2, 2)), made, 1.0, now=20.0, epochs=np.array([2.0, 2.0, 2.0, 2.0]), ready=np.zeros(4))
    view.groups, view.free = {0: (0,), 3: (1,), 2: (2,)}, {3}
    assert WaterFilling().decide(view) == {0: (3,), 3: (0, 1)}


def test_groups_are_inside_nodes_where_they_fit() -> None:
    problem, nodes = SUITES["fleet"](0), Nodes.uniform(60, 4)
    found = simulate(WaterFilling(), problem.models, nodes, problem.truth, restart=34.0)
    small = [allocation for allocation in found.allocations if 1 < len(allocation.devices) <= 4]
    assert sum(nodes.count_nodes(allocation.devices) == 1 for allocation in small) > 0.6 * len(small)


def test_real_rates_may_be_lower_than_known_rates() -> None:
    made = tasks(10.0)
    found = simulate(OneDevice(), made, Nodes((1,)), GroundTruth([2], [GeometricRates(5.0)]))
    assert found.makespan == pytest.approx(40.0)


@pytest.mark.parametrize("devices", [20, 80, 160])
def test_the_suite_has_the_numbers_of_the_paper_and_water_filling_is_near_the_bound(devices: int) -> None:
    problem, nodes = SUITES["fleet"](1), Nodes.uniform(devices, 4)
    lengths = [t.rows * e / t.rate.single for t, e in zip(problem.models, problem.truth.epochs, strict=True)]  # type: ignore[attr-defined]
    assert 9_500 < np.mean(lengths) < 11_500 and max(lengths) <= 22_700
    bound = problem.bound(nodes)
    assert problem.run("water", nodes, stops=1).makespan < 1.25 * bound
    assert problem.run("water", nodes).makespan < problem.run("fleet-g", nodes).makespan


def test_the_baseline_equals_its_policy() -> None:
    problem, nodes = SUITES["fleet"](2), Nodes.uniform(20, 4)
    ends = [problem.run("one-device", nodes, seed).makespan for seed in range(3)]
    assert problem.baseline(nodes, orders=3) == pytest.approx(np.mean(ends))


class ScriptedPolicy:
    """A policy with scripted answers."""

    lockstep = False

    def __init__(self, *answers: Changes) -> None:
        self.answers = list(answers)

    def decide(self, view: FleetView) -> Changes:
        return self.answers.pop(0) if self.answers else {}


def test_the_simulator_refuses_impossible_allocations() -> None:
    made, nodes, truth = tasks(10.0, 10.0), Nodes((2,)), GroundTruth([1, 2])
    with pytest.raises(RegattaError, match="m1 was given"):
        simulate(ScriptedPolicy({0: (0,), 1: (0,)}), made, nodes, truth)
    with pytest.raises(RegattaError, match="has converged"):
        simulate(ScriptedPolicy({0: (0,), 1: (1,)}, {0: (0,)}), made, nodes, truth)
    with pytest.raises(RegattaError, match="between two of its stops"):
        simulate(ScriptedPolicy({0: (0,), 1: (1,)}, {1: (0, 1)}), tasks(10.0, 7.0), nodes, truth, stops=1)
    with pytest.raises(UsageError, match="1 models waiting forever"):
        simulate(ScriptedPolicy({0: (0,)}), made, nodes, truth)
    with pytest.raises(UsageError, match="2 models, but the epochs of 1"):
        simulate(OneDevice(), made, nodes, GroundTruth([1]))


def test_a_misspelt_policy_suggests_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        make_policy("fleat-g")
    assert "fleet-g" in caught.value.candidates
