"""The plan: what each strategy costs, which is chosen, and why the others are not."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.errors import UsageError
from regatta.plan.papers.regimes import STRATEGIES, Regime, compare, grid, single
from regatta.plan.papers.suites import run_suite
from regatta.plan.strategy.choose import Constraints, choose, lower_bound
from regatta.plan.strategy.costs import (
    ClusterSpec,
    DataCosts,
    KindTeam,
    ModelKind,
    Strategy,
    Workload,
    estimate,
    pack_sizes,
)
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.plan.strategy.plan_tree import EvaluateNode, GroupNode, PackNode, Plan, ShareNode
from regatta.plan.strategy.simulate import Noise, simulate_strategy, with_noise
from regatta.plan.strategy.sizes import best_packs, best_teams, best_widths

NO_NOISE = Noise(models=0.0, units=0.0)
TINY = ModelKind("tiny", 32, 2, 10.0, state_bytes=1e5, peak_bytes=1e6, packed={8: 1.7})
LARGE = ModelKind("large", 2, 3, 800.0, communication=Communication(0.1), state_bytes=1e9, peak_bytes=4e9)


def test_hopping_costs_the_load_of_a_worker_or_the_chain_of_a_model() -> None:
    many = Workload((ModelKind("a", 8, 2, 12.0),))
    assert estimate(many, ClusterSpec(2), Strategy()).seconds == pytest.approx(8 / 2 * 12 * 2)
    few = Workload((ModelKind("a", 1, 2, 12.0),))
    assert estimate(few, ClusterSpec(4), Strategy()).seconds == pytest.approx(24.0)


def test_packs_cost_what_was_measured_and_have_even_sizes() -> None:
    """Ten models in packs of at most four: 4, 3, 3. One worker takes 2.2 + 2 * 1.8 seconds."""
    work = Workload((ModelKind("a", 10, 1, 1.0, packed={4: 2.2}),))
    assert pack_sizes(10, 4) == [4, 3, 3]
    assert estimate(work, ClusterSpec(1), Strategy((4,))).seconds == pytest.approx(2.2 + 2 * 1.8)


def test_groups_cost_communication_and_may_leave_workers_idle() -> None:
    work = Workload((ModelKind("a", 1, 1, 100.0, communication=Communication(0.5)),))
    assert estimate(work, ClusterSpec(4), Strategy(width=4)).seconds == pytest.approx(100 / 4 * 2.5)
    assert estimate(work, ClusterSpec(5), Strategy(width=4)).seconds == pytest.approx(100 / 4 * 2.5)
    assert not estimate(work, ClusterSpec(4), Strategy(width=4)).exact


def test_sharing_preprocesses_once_an_epoch_and_reads_for_each_model() -> None:
    work = Workload((ModelKind("a", 8, 3, 10.0),), DataCosts(prepare=40.0, read=1.0))
    assert estimate(work, ClusterSpec(1), Strategy()).seconds == pytest.approx(3 * 8 * 50.0)
    assert estimate(work, ClusterSpec(1, share_start=5.0), Strategy(share=True)).seconds == pytest.approx(
        5 + 3 * (8 * 11 + 40)
    )
    assert estimate(work, ClusterSpec(1, cores=2), Strategy()).seconds == pytest.approx(3 * 8 * 20.0)


@pytest.mark.parametrize(
    "strategy",
    [Strategy(), Strategy((4,)), Strategy(width=2), Strategy(share=True), Strategy((8,), share=True)],
    ids=lambda strategy: strategy.name,
)
@pytest.mark.parametrize("cores", [0, 2])
def test_the_formula_is_near_the_simulation(strategy: Strategy, cores: int) -> None:
    kind = ModelKind("a", 32, 2, 40.0, 2.0, 1e6, 1e6, {8: 3.0}, Communication(0.3))
    work, cluster = Workload((kind,), DataCosts(20.0, 1.0)), ClusterSpec(4, unit=0.01, bandwidth=1e8, cores=cores)
    assert estimate(work, cluster, strategy).seconds == pytest.approx(
        simulate_strategy(work, cluster, strategy, NO_NOISE), rel=0.08
    )


def test_tiny_models_are_packed_and_stay_exact() -> None:
    chosen, plan = choose(Workload((TINY,)), ClusterSpec(2))
    assert chosen.packs_any and plan.estimate.exact
    (part,) = plan.root.parts
    assert isinstance(part, PackNode) and part.size == chosen.packs[0]
    assert any(other.name == "hop" and "times as long" in other.why for other in plan.rejected)


def test_large_models_get_groups_only_where_rounding_is_allowed() -> None:
    work, cluster = Workload((LARGE,)), ClusterSpec(8)
    exact, plan = choose(work, cluster)
    assert exact == Strategy()
    assert any("numerics='fast'" in other.why for other in plan.rejected)
    fast, plan = choose(work, cluster, numerics="fast", noise=NO_NOISE)
    assert fast.width == 4
    (part,) = plan.root.parts
    assert isinstance(part, GroupNode) and (part.groups, part.width, part.nodes, part.idle) == (2, 4, 1, 0)


def test_expensive_preprocessing_is_shared_and_cheap_is_not() -> None:
    kinds = (ModelKind("a", 8, 2, 10.0),)
    cluster = ClusterSpec(2, share_start=1.0)
    dear, plan = choose(Workload(kinds, DataCosts(prepare=30.0, read=0.5)), cluster)
    assert dear.share and isinstance(plan.root.parts[0], ShareNode)
    cheap, _ = choose(Workload(kinds, DataCosts(prepare=0.05, read=0.5)), cluster)
    assert not cheap.share


def test_the_simplest_strategy_wins_ties() -> None:
    """Packs that are one percent faster are not worth it."""
    chosen, plan = choose(Workload((ModelKind("a", 16, 1, 10.0, packed={2: 1.98}),)), ClusterSpec(1), noise=NO_NOISE)
    assert chosen == Strategy()
    assert "the simplest strategy" in plan.why


def test_each_kind_has_its_own_packs() -> None:
    work = Workload((TINY, ModelKind("large", 16, 2, 10.0, packed={2: 2.2})))
    (sizes,) = best_packs(work, ClusterSpec(2), share=False)
    assert sizes[0] > 1 and sizes[1] == 1


def test_packs_keep_to_the_memory_of_a_device() -> None:
    (sizes,) = best_packs(Workload((TINY,)), ClusterSpec(1, memory=3.5e6), share=False)
    assert sizes == (3,)
    with pytest.raises(UsageError, match="No plan is possible"):
        choose(Workload((TINY,)), ClusterSpec(1, memory=5e5))


def test_any_strategy_can_be_forced() -> None:
    work, cluster = Workload((replace(TINY, communication=Communication(5.0)),), DataCosts(1.0, 0.1)), ClusterSpec(4)
    assert choose(work, cluster, constraints=Constraints(pack=1))[0].packs == ()
    assert choose(work, cluster, constraints=Constraints(pack=4))[0].packs == (4,)
    assert choose(work, cluster, constraints=Constraints(width=2))[0].width == 2
    assert choose(work, cluster, constraints=Constraints(share=True))[0].share
    with pytest.raises(UsageError, match="measured up to 8, not 16"):
        choose(work, cluster, constraints=Constraints(pack=16))


def test_evaluation_has_a_node_and_costs_time() -> None:
    kind = ModelKind("a", 4, 2, 10.0, evaluate=5.0)
    chosen, plan = choose(Workload((kind,)), ClusterSpec(2))
    assert plan.root.parts == (EvaluateNode(16, plan.root.parts[0].estimate, unit=2.5),)
    assert estimate(Workload((kind,)), ClusterSpec(2), chosen).seconds == pytest.approx(4 * 2 * 15.0 / 2, rel=0.01)


def test_a_plan_is_text_and_json() -> None:
    work = Workload((TINY,), DataCosts(prepare=30.0, read=0.5, bytes=1e9))
    _, plan = choose(work, ClusterSpec(2, per_node=2))
    text = plan.text()
    assert text.splitlines()[1].startswith("hop       32 models, 64 epochs in all, over 2 partitions on 2 workers")
    assert "instead of\n" in text and "exact" in text and "device hours" in text
    document = json.loads(json.dumps(plan.to_json()))
    assert {part["node"] for part in document["root"]["parts"]} == {"pack", "share"}
    assert document["rejected"] and document["device_hours"] == pytest.approx(plan.device_hours)
    assert Plan.from_json(document) == plan


def test_no_strategy_is_faster_than_the_bound() -> None:
    for regime in grid((1, 4, 32), (1, 4)):
        work, cluster = regime.work(), regime.cluster()
        bound = lower_bound(work, cluster)[0]
        for strategy in STRATEGIES:
            assert estimate(work, cluster, single(work, cluster, strategy)).seconds >= bound * (1 - 1e-9)


def test_widths_do_not_waste_workers() -> None:
    work = Workload((replace(LARGE, models=1),))
    assert best_widths(work, ClusterSpec(8), share=False, count=2) == [8, 4]


def test_noise_is_the_same_for_the_same_seed() -> None:
    work = Workload((TINY, LARGE), DataCosts(1.0, 0.1))
    assert with_noise(work, 0.1, 1) == with_noise(work, 0.1, 1) != with_noise(work, 0.1, 2)
    assert with_noise(work, 0.0, 1) == work


def test_the_plan_is_near_the_best_single_strategy_and_better_on_average() -> None:
    regimes = [r for r in grid((1, 6, 24), (1, 4)) if r.preprocessing != "even"]
    found = [compare(regime) for regime in regimes]
    best = [min(times[strategy] for strategy in STRATEGIES) for times in found]
    ratios = {name: [times[name] / least for times, least in zip(found, best, strict=True)] for name in found[0]}
    assert max(ratios["plan"]) <= 1.05
    assert all(fmean(ratios["plan"]) < fmean(ratios[strategy]) for strategy in STRATEGIES)


def test_suites_by_name() -> None:
    rows = run_suite("fleet", devices=[40], policies=["water", "one-device"], draws=1)
    assert [row.policy for row in rows] == ["water", "one-device"]
    assert rows[0].speedup > 1.2 and rows[0].ratio >= 1.0
    assert {row.policy for row in run_suite("hoho", devices=[4])} >= {"measured", "hoho", "half"}
    assert len(run_suite("regimes", devices=[1], policies=["plan"])) == 36
    with pytest.raises(UsageError, match="no suite 'fleat'"):
        run_suite("fleat")
    with pytest.raises(UsageError, match="has no policy 'watter'"):
        run_suite("fleet", policies=["watter"])
    with pytest.raises(UsageError, match="0 draws"):
        run_suite("fleet", draws=0)


def test_invalid_workloads() -> None:
    with pytest.raises(UsageError, match="all must be above zero"):
        ModelKind("a", 0, 1, 1.0)
    with pytest.raises(UsageError, match="no models"):
        choose(Workload(()), ClusterSpec(1))
    with pytest.raises(UsageError, match="0 workers"):
        ClusterSpec(0)
    assert Regime(4, 2, "tiny", "dear").work().models == 4


# -- teams ---------------------------------------------------------------------------------------------------

SLOW = ModelKind("slow", 1, 2, 100.0, communication=Communication(0.2))
QUICK = ModelKind("quick", 8, 2, 10.0, communication=Communication(3.0))


def test_a_long_model_gets_a_group_while_short_ones_hop() -> None:
    """On four workers: hopping takes the 200 s of the long one; groups of two cost the short ones too much."""
    work, cluster = Workload((QUICK, SLOW)), ClusterSpec(4)
    (best,) = best_teams(work, cluster)
    assert best.teams == (KindTeam(2, 1, (1,)), KindTeam(1, 2, (0,)))
    assert best.name == "groups of 2 and 1"
    assert estimate(work, cluster, best).seconds == pytest.approx(200 * 1.2 / 2, rel=0.05)
    chosen, plan = choose(work, cluster, numerics="fast")
    assert chosen == best and not plan.estimate.exact
    wide, narrow = [part for part in plan.root.parts if isinstance(part, GroupNode)]
    assert (wide.groups, wide.width, wide.models) == (1, 2, "1 model slow")
    assert (narrow.groups, narrow.width, narrow.models) == (2, 1, "8 models quick")
    assert "1 of 2 workers inside a node for 1 model slow" in plan.text()
    assert "2 workers by themselves for 8 models quick" in plan.text()
    assert Plan.from_json(plan.to_json()) == plan


def test_teams_are_not_chosen_where_they_do_not_pay_or_are_not_allowed() -> None:
    alike = Workload((replace(SLOW, name="a", models=4), replace(SLOW, name="b", models=4)))
    assert not choose(alike, ClusterSpec(4), numerics="fast")[0].teams
    assert choose(Workload((QUICK, SLOW)), ClusterSpec(4))[0] == Strategy()
    assert not choose(Workload((QUICK, SLOW)), ClusterSpec(4), numerics="fast", constraints=Constraints(width=2))[
        0
    ].teams
    assert not choose(Workload((QUICK, replace(SLOW, communication=None))), ClusterSpec(4), numerics="fast")[0].teams


def test_kinds_that_were_not_tried_in_groups_get_none() -> None:
    """Only the slowest kinds are tried; the others can train beside them."""
    chosen, _ = choose(Workload((replace(QUICK, communication=None), SLOW)), ClusterSpec(4), numerics="fast")
    assert chosen.teams == (KindTeam(2, 1, (1,)), KindTeam(1, 2, (0,)))


@given(
    st.lists(
        st.builds(
            ModelKind,
            st.text("abc", min_size=1),
            st.integers(1, 9),
            st.integers(1, 5),
            st.floats(0.1, 1000.0),
            st.floats(0.0, 50.0),
            communication=st.builds(Communication, st.floats(0.0, 4.0)),
        ),
        min_size=2,
        max_size=5,
    ),
    st.integers(3, 24),
)
@settings(max_examples=60, deadline=None)
def test_every_kind_has_one_team_and_no_worker_is_in_two(kinds: list[ModelKind], workers: int) -> None:
    work, cluster = Workload(tuple(kinds)), ClusterSpec(workers, unit=0.01)
    for strategy in best_teams(work, cluster, 3):
        assert sorted(kind for team in strategy.teams for kind in team.kinds) == list(range(len(kinds)))
        assert sum(team.workers for team in strategy.teams) <= workers
        assert len({team.width for team in strategy.teams}) == len(strategy.teams) > 1
        assert all(team.groups >= 1 for team in strategy.teams)
        assert estimate(work, cluster, strategy).seconds >= lower_bound(work, cluster)[0] * (1 - 1e-9)


def test_the_formula_for_teams_is_near_the_simulation() -> None:
    work, cluster = Workload((QUICK, SLOW)), ClusterSpec(4, unit=0.01, partitions=4)
    (best,) = best_teams(work, cluster)
    assert simulate_strategy(work, cluster, best, NO_NOISE) == pytest.approx(
        estimate(work, cluster, best).seconds, rel=0.08
    )
