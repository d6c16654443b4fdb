"""The storage graph, its plans and what they cost, and the trees that need no budget."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_graphs import all_plans, graphs

from regatta.errors import CorruptError, UsageError
from regatta.store.archive.budgets import (
    by_access,
    by_factor,
    by_snapshot,
    cheapest_costs,
    check_feasible,
    split_by_size,
)
from regatta.store.archive.spanning_trees import balanced_tree, cheapest_tree, quickest_tree
from regatta.store.archive.storage_graph import StorageEdge, StorageGraph, StoragePlan


def whole_and_delta() -> StorageGraph:
    """Matrix b as it is or as one of two deltas to a; both make a snapshot."""
    edges = [
        StorageEdge(None, "a", 10, 1, "whole"),
        StorageEdge(None, "b", 10, 1, "whole"),
        StorageEdge("a", "b", 4, 2, "dense"),
        StorageEdge("a", "b", 6, 0.5, "quick"),
    ]
    return StorageGraph(edges, {"both": ["a", "b"], "first": ["a"]})


def plan_of(graph: StorageGraph, *options: object) -> StoragePlan:
    chosen = [-1] * len(graph)
    for node, option in enumerate(options, 1):
        (chosen[node],) = [edge for edge in graph.into[node] if graph.edges[edge].option == option]
    return StoragePlan(graph, tuple(chosen))


class TestCosts:
    def test_schemes(self) -> None:
        plan = plan_of(whole_and_delta(), "whole", "dense")
        assert plan.storage == 14
        assert plan.recreation("independent").tolist() == [1 + 3, 1]
        assert plan.recreation("parallel").tolist() == [3, 1]
        assert plan.recreation("reusable").tolist() == [3, 1]  # a is recreated once for both
        assert plan.hops.tolist() == [0, 1, 2]

    def test_edges_come_bases_first(self) -> None:
        edges = [StorageEdge("b", "a", 1, 1), StorageEdge(None, "b", 5, 1)]
        graph = StorageGraph(edges, {})
        plan = StoragePlan(graph, tuple(cheapest_tree(graph)))
        assert list(plan.edges()) == ["b", "a"]
        assert plan.edges()["a"].source == "b"

    def test_a_matrix_named_twice_in_a_snapshot_is_read_once(self) -> None:
        graph = StorageGraph([StorageEdge(None, "a", 10, 1)], {"tied": ["a", "a"]})
        assert StoragePlan(graph, tuple(cheapest_tree(graph))).recreation("independent").tolist() == [1]

    def test_an_empty_snapshot_costs_nothing(self) -> None:
        graph = StorageGraph([StorageEdge(None, "a", 10, 1)], {"empty": []})
        for scheme in ("independent", "parallel", "reusable"):
            assert StoragePlan(graph, tuple(cheapest_tree(graph))).recreation(scheme).tolist() == [0]

    def test_a_plan_with_a_cycle_of_deltas_is_refused(self) -> None:
        edges = [StorageEdge(None, "a", 9, 1), StorageEdge("a", "b", 1, 1), StorageEdge("b", "a", 1, 1)]
        graph = StorageGraph(edges, {})
        around = StoragePlan(graph, (-1, *[e for n in (1, 2) for e in graph.into[n] if graph.sources[e] != 0]))
        with pytest.raises(CorruptError, match="cycle"):
            _ = around.distances

    def test_an_edge_into_another_matrix_is_refused(self) -> None:
        graph = whole_and_delta()
        with pytest.raises(CorruptError, match="stores b by an edge into another"):
            _ = StoragePlan(graph, (-1, 0, 0)).order


class TestRefusals:
    @pytest.mark.parametrize(
        ("edges", "snapshots", "message"),
        [
            ([StorageEdge("x", "a", 1, 1), StorageEdge(None, "a", 1, 1)], {}, "starts at x, which no edge leads to"),
            ([StorageEdge("a", "b", 1, 1), StorageEdge("b", "a", 1, 1)], {}, "2 of 2 matrices cannot be recreated"),
            ([StorageEdge(None, "a", -1, 1)], {}, "costs -1 to store"),
            ([StorageEdge(None, "a", 1, math.nan)], {}, "nan to recreate"),
            ([StorageEdge(None, "a", math.inf, 1)], {}, "costs inf to store"),
            ([StorageEdge("a", "a", 1, 1), StorageEdge(None, "a", 1, 1)], {}, "must be another matrix"),
            ([StorageEdge(None, "a", 1, 1)], {"s": ["a", "b"]}, "Snapshot s has 1 matrices without any edge: b"),
        ],
    )
    def test_graphs(self, edges: list[StorageEdge], snapshots: dict[str, list[str]], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            StorageGraph(edges, snapshots)

    def test_an_infeasible_budget_says_by_how_much(self) -> None:
        graph = whole_and_delta()
        with pytest.raises(UsageError, match=r"1 of 2 snapshots.*both has 1.5 and takes 2 at best, 0.5 more") as error:
            check_feasible(graph, "independent", by_snapshot(graph, {"both": 1.5, "first": 1}))
        assert "1.33333 times" in str(error.value)

    def test_budgets(self) -> None:
        graph = whole_and_delta()
        with pytest.raises(UsageError, match=r"0\.9 times the cheapest"):
            by_factor(graph, "independent", 0.9)
        with pytest.raises(UsageError, match="no snapshot 'bth'") as error:
            by_snapshot(graph, {"bth": 3})
        assert "both" in error.value.candidates
        with pytest.raises(UsageError, match="nan"):
            by_snapshot(graph, {"both": math.nan})
        with pytest.raises(UsageError, match="read -1 times"):
            by_access(graph, "independent", 2, {"both": -1})
        with pytest.raises(UsageError, match="no snapshot 'none' that is read"):
            by_access(graph, "independent", 2, {"none": 1})


class TestBudgets:
    def test_by_factor(self) -> None:
        assert by_factor(whole_and_delta(), "independent", 1.5).tolist() == [3, 1.5]
        assert by_factor(whole_and_delta(), "parallel", 1.5).tolist() == [1.5, 1.5]

    def test_frequent_snapshots_get_less_and_the_mean_read_is_kept(self) -> None:
        graph = StorageGraph(
            [StorageEdge(None, name, 10, cost) for name, cost in zip("abcd", (1, 2, 3, 4), strict=True)],
            {name: [name] for name in "abcd"},
        )
        reads = {"a": 100.0, "b": 10.0, "c": 1.0}
        cheapest, budgets = cheapest_costs(graph, "independent"), by_access(graph, "independent", 2, reads)
        factors = (budgets / cheapest).tolist()
        assert 1 < factors[0] < 2 < factors[1] < factors[2] < factors[3] == math.inf
        often = np.array([100, 10, 1])
        assert (often * budgets[:3]).sum() == pytest.approx(2 * (often * cheapest[:3]).sum())

    def test_snapshots_that_are_never_read_have_no_budget(self) -> None:
        assert by_access(whole_and_delta(), "independent", 2, {}).tolist() == [math.inf, math.inf]

    def test_splitting_a_budget_gives_every_matrix_its_minimum(self) -> None:
        edges = [StorageEdge(None, "small", 1, 5), StorageEdge(None, "large", 9, 5)]
        graph = StorageGraph(edges, {"s": ["small", "large"]})
        small, large = split_by_size(graph, "independent", np.array([12.0]))[1:]
        assert small == 5
        assert large == pytest.approx(7)
        assert small + large <= 12

    def test_the_tightest_snapshot_bounds_a_shared_matrix(self) -> None:
        graph = whole_and_delta()
        assert split_by_size(graph, "parallel", np.array([4.0, 2.0]))[1:] == [2.0, 4.0]


class TestTrees:
    @settings(max_examples=150, deadline=None)
    @given(graphs())
    def test_the_cheapest_tree_is_the_cheapest_of_all(self, graph: StorageGraph) -> None:
        found = StoragePlan(graph, tuple(cheapest_tree(graph)))
        assert found.storage == min(plan.storage for plan in all_plans(graph))

    @settings(max_examples=150, deadline=None)
    @given(graphs())
    def test_the_quickest_tree_is_nowhere_beaten(self, graph: StorageGraph) -> None:
        found = StoragePlan(graph, tuple(quickest_tree(graph)))
        for plan in all_plans(graph):
            assert (found.distances <= plan.distances).all()

    @settings(max_examples=150, deadline=None)
    @given(graphs(), st.floats(1, 4))
    def test_the_balanced_tree_keeps_its_bounds(self, graph: StorageGraph, alpha: float) -> None:
        bounds = StoragePlan(graph, tuple(quickest_tree(graph))).distances * alpha
        balanced = StoragePlan(graph, tuple(balanced_tree(graph, bounds.tolist())))
        assert (balanced.distances <= bounds).all()

    @pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0])
    def test_the_balanced_tree_weighs_no_more_than_its_theorem_says(self, alpha: float) -> None:
        """One cost for both and symmetric edges: at most 1 + 2 / (alpha - 1) times the cheapest tree."""
        random = np.random.default_rng(7)
        for _ in range(20):
            places = random.random((30, 2))
            edges = []
            for a, b in itertools.permutations(range(30), 2):
                length = float(np.hypot(*(places[a] - places[b])))
                edges.append(StorageEdge(None if a == 0 else a, b, length, length) if b else None)
            graph = StorageGraph([edge for edge in edges if edge is not None], {})
            bounds = StoragePlan(graph, tuple(quickest_tree(graph))).distances * alpha
            balanced = StoragePlan(graph, tuple(balanced_tree(graph, bounds.tolist())))
            cheapest = StoragePlan(graph, tuple(cheapest_tree(graph)))
            assert cheapest.storage <= balanced.storage <= (1 + 2 / (alpha - 1)) * cheapest.storage
            assert (balanced.distances <= bounds).all()

    def test_nested_cycles_are_contracted_and_opened_again(self) -> None:
        """Each of two pairs is cheapest as a cycle, and both pairs together again."""
        edges = [
            *(StorageEdge(None, node, price, 1) for node, price in zip("abcd", (20, 21, 22, 23), strict=True)),
            *(
                StorageEdge("a", "b", 1, 1),
                StorageEdge("b", "a", 1, 1),
                StorageEdge("c", "d", 1, 1),
                StorageEdge("d", "c", 1, 1),
            ),
            *(StorageEdge("b", "c", 5, 1), StorageEdge("d", "a", 4, 1)),
        ]
        graph = StorageGraph(edges, {})
        found = StoragePlan(graph, tuple(cheapest_tree(graph)))
        assert found.storage == 20 + 1 + 5 + 1
        assert found.storage == min(plan.storage for plan in all_plans(graph))

    def test_of_equally_quick_edges_the_cheaper_is_taken(self) -> None:
        graph = StorageGraph(
            [StorageEdge(None, "a", 9, 1), StorageEdge(None, "a", 5, 1), StorageEdge(None, "a", 7, 1)], {}
        )
        assert StoragePlan(graph, tuple(quickest_tree(graph))).storage == 5
