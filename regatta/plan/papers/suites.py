"""The papers' experiments by name, for `regatta simulate --suite`: each policy on any cluster.

fleet, fleet-harsh   100 unlike models with unknown epochs, on groups of devices (FLEET, section 6)
hoho                 fewer models than workers, by the ratio of communication (Cerebro, section 12)
regimes              each single strategy and the planner's choice, from tiny to large models
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from regatta.errors import UsageError, nearest
from regatta.plan.fleet.nodes import Nodes
from regatta.plan.papers import fleet_suite as fleet
from regatta.plan.papers.regimes import STRATEGIES, WORKERS, compare, grid
from regatta.plan.strategy.groups_or_hops import WIDTH_RULES, Communication, round_time

RATIOS = (0.02, 0.1, 0.3, 0.45, 1.0, 4.0)  # 0.3 and 0.45 are those of the Cerebro paper's ImageNet and Criteo runs


@dataclass(frozen=True)
class SuiteRequest:
    """What to simulate: numbers of devices, devices of a node, policies by name, and draws to average over."""

    devices: Sequence[int]
    each: int
    policies: Sequence[str]
    draws: int


@dataclass(frozen=True)
class SuiteRow:
    case: str
    policy: str
    seconds: float
    ratio: float  # to the bound, or to the best single strategy
    speedup: float  # over the suite's baseline


@dataclass(frozen=True)
class Suite:
    policies: tuple[str, ...]  # the default
    known: tuple[str, ...]
    devices: tuple[int, ...]
    run: Callable[[SuiteRequest], list[SuiteRow]]


def run_suite(
    name: str,
    *,
    devices: Sequence[int] | None = None,
    each: int = fleet.DEVICES_PER_NODE,
    policies: Sequence[str] | None = None,
    draws: int = 3,
) -> list[SuiteRow]:
    if name not in SUITES:
        hint = f"Suites: {', '.join(SUITES)}."
        raise UsageError(f"There is no suite {name!r}.", candidates=nearest(name, SUITES), hint=hint)
    suite = SUITES[name]
    for policy in policies or ():
        if policy not in suite.known:
            hint = f"Policies of this suite: {', '.join(suite.known)}."
            candidates = nearest(policy, suite.known)
            raise UsageError(f"The suite {name!r} has no policy {policy!r}.", candidates=candidates, hint=hint)
    if draws < 1 or each < 1:
        raise UsageError(f"{draws} draws, nodes of {each}: both must be at least 1.")
    return suite.run(SuiteRequest(devices or suite.devices, each, policies or suite.policies, draws))


def _fleet(name: str) -> Suite:
    def run(request: SuiteRequest) -> list[SuiteRow]:
        problems = [fleet.SUITES[name](seed) for seed in range(request.draws)]
        rows = []
        for devices in request.devices:
            nodes = Nodes.uniform(devices, request.each)
            base = [problem.baseline(nodes) for problem in problems]
            bounds = [problem.bound(nodes) for problem in problems]
            for policy in request.policies:
                ends = [problem.run(policy, nodes, seed).makespan for seed, problem in enumerate(problems)]
                gap = fmean(end / bound for end, bound in zip(ends, bounds, strict=True))
                gain = fmean(start / end for start, end in zip(base, ends, strict=True))
                rows.append(SuiteRow(f"{devices} devices", policy, fmean(ends), gap, gain))
        return rows

    policies = ("water", "fleet-g", "fleet-l", "one-device", "homogeneous")
    return Suite(policies, tuple(fleet.POLICIES), fleet.DEVICES, run)


def _hoho(request: SuiteRequest) -> list[SuiteRow]:
    """Times for an epoch of an hour on one worker; hopping is the baseline."""
    rows = []
    for workers in request.devices:
        for ratio in RATIOS:
            link = Communication(ratio)
            for models in range(1, workers):
                widths = {name: rule(models, workers, link) for name, rule in WIDTH_RULES.items()}
                times = {name: round_time(models, workers, width, link) for name, width in widths.items()}
                best = min(times["hops"], times["hoho"], times["data-parallel"])
                case = f"{models} models, {workers} workers, ratio {ratio:g}"
                for p in request.policies:
                    rows.append(SuiteRow(case, p, 3600 * times[p], times[p] / best, times["hops"] / times[p]))
    return rows


def _regimes(request: SuiteRequest) -> list[SuiteRow]:
    rows = []
    for regime in grid((1, 8, 64), request.devices):
        found = compare(regime)
        best = min(found[strategy] for strategy in STRATEGIES)
        case = f"{regime.models} {regime.size}, {regime.workers} workers, {regime.preprocessing} data"
        for policy in request.policies:
            rows.append(SuiteRow(case, policy, found[policy], found[policy] / best, found["hop"] / found[policy]))
    return rows


_STRATEGIES = ("plan", *STRATEGIES)

SUITES: dict[str, Suite] = {
    "fleet": _fleet("fleet"),
    "fleet-harsh": _fleet("fleet-harsh"),
    "hoho": Suite(tuple(WIDTH_RULES), tuple(WIDTH_RULES), (8,), _hoho),
    "regimes": Suite(_STRATEGIES, _STRATEGIES, WORKERS[::3], _regimes),
}
