"""The plan of a run: made of what pilots measured, and made again when units prove it wrong."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from regatta.cluster import Cluster
from regatta.data import Dataset
from regatta.engine.profiling.models import ModelProfiles
from regatta.engine.profiling.results import ProfilingResults
from regatta.engine.workers.base import WorkerPool
from regatta.errors import RegattaError
from regatta.journal.journal import Record
from regatta.plan.strategy.choose import (
    EFFORT,
    Constraints,
    Numerics,
    choose,
)
from regatta.plan.strategy.costs import (
    ClusterSpec,
    Strategy,
    estimate,
    load_and_chain,
)
from regatta.plan.strategy.form_packs import PackRate
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.plan.strategy.plan_tree import Plan
from regatta.plan.strategy.workload import (
    ModelCosts,
    ProfiledModel,
    SweepProfile,
    Team,
)
from regatta.search.base import Train

UNIT_SECONDS = 0.002  # from the end of a unit to the beginning of the next
START = 2.0  # seconds until a process is there that prepares data, where that is not known
PLAYED = 40.0  # units that may be played to compare plans, for each second that the run will take
LEAST_PLAYED = 200
CHAIN_BOUND = 1.05  # a model's way is so much longer than a worker's work: then groups may pay
DRIFT = math.log(1.4)  # units that stray so far from their estimates call for another plan
ENOUGH = 8  # units, and two of each worker, before that is said; twice as many after each plan
SWITCH = 1.1  # another plan must be so many times as fast as the present one


@dataclass(frozen=True)
class PlanOptions:
    """What a sweep leaves to the plan (None), and what it asks for."""

    pack: int | bool | None = None
    share: bool | None = None
    group: int | None = None
    numerics: Numerics = "exact"

    def forced(self) -> Constraints:
        return Constraints(self.pack, self.group, self.share)

    def kept_to(self, decision: RunStrategy, pool: WorkerPool) -> RunStrategy:
        """What an earlier controller decided, as far as it is what is asked for now, and can be done with this pool."""
        needed = sum(team.width * team.groups for team in decision.teams) or decision.width
        spare = len(pool.workers) - needed
        narrowest = min((team.width for team in decision.teams), default=len(pool.workers) + 1)  # more would idle
        fits = self.numerics == "fast" and pool.groupable and 0 <= spare < narrowest
        width = self.group or (decision.width if fits else 1)
        teams = decision.teams if fits and self.group is None else ()
        share = decision.share if self.share is None else self.share
        packs = {} if self.pack is False else decision.packs
        return replace(decision, width=width, share=share, packs=packs, teams=teams)


@dataclass(frozen=True)
class RunStrategy:
    """How a run is trained: the width of groups, whether data is shared, the most members of packs by build.

    With teams, groups are of several widths, the largest of which is `width`.
    """

    width: int = 1
    share: bool = False
    packs: Mapping[str, int] = field(default_factory=dict)
    plan: Plan | None = None
    teams: tuple[Team, ...] = ()

    def same_way(self, other: RunStrategy) -> bool:
        return self.same_groups(other) and (self.share, dict(self.packs)) == (other.share, dict(other.packs))

    def same_groups(self, other: RunStrategy) -> bool:
        return (self.width, self.teams) == (other.width, other.teams)

    def to_record(self) -> dict[str, Any]:
        told = None if self.plan is None else self.plan.to_json()
        teams = [asdict(team) for team in self.teams]
        return {"width": self.width, "share": self.share, "packs": dict(self.packs), "teams": teams, "plan": told}

    @classmethod
    def recalled(cls, history: Iterable[Record]) -> RunStrategy | None:
        """The last one in a journal."""
        lines = [line for line in history if line["event"] == "plan"]
        if not lines:
            return None
        line = lines[-1]
        plan = None if line["plan"] is None else Plan.from_json(line["plan"])
        teams = tuple(Team(team["width"], team["groups"], tuple(team["models"])) for team in line.get("teams", ()))
        return cls(line["width"], line["share"], line["packs"], plan, teams)


@dataclass(frozen=True)
class AvailableWorkers:
    """The workers that a plan is for: how many, with how many threads each, and what they can do."""

    workers: int
    threads: int = 1
    here: bool = True  # on this machine, whose cores are known
    packs: bool = True
    groups: bool = True
    memory: float = math.inf
    start: float = START  # seconds until a process is there that prepares data


def available_workers(pool: WorkerPool, cluster: Cluster, outcome: ModelProfiles) -> AvailableWorkers:
    """The workers of a pool, each of a group counted; what those that are there say of themselves holds for all."""
    ready, infos = outcome.ready, [event.info for event in outcome.ready.values()]
    start = START if outcome.start_seconds is None else outcome.start_seconds
    memory = math.inf if outcome.memory is None else outcome.memory
    groups = len(ready) if cluster.kind == "ray" and ready else len(pool.workers) - len(outcome.lost)
    groups = 1 if cluster.kind == "inline" else groups  # they take turns
    width = max((int(info.get("width", 1)) for info in infos), default=cluster.group or 1)
    return AvailableWorkers(
        groups * width, cluster.threads or 1, cluster.kind != "ray", pool.packs, pool.groupable, memory, start=start
    )


class Planner:
    """Decides how a run is trained, and watches whether it goes as it was estimated."""

    def __init__(self, dataset: Dataset, options: PlanOptions) -> None:
        self._dataset, self.options = dataset, options
        self._drift = {False: _Drift(), True: _Drift()}  # of models by themselves, and of packs
        self._plans = 0  # that were made again

    def decide(self, findings: ProfilingResults, wanted: Mapping[str, Train], force: AvailableWorkers) -> RunStrategy:
        """The best way to train what is wanted."""
        profile = self.profile(findings, wanted)
        if not profile.known():
            return RunStrategy(self.options.group or 1, bool(self.options.share))
        return _decision(profile, *self._choose(profile, force))

    def revise(
        self, findings: ProfilingResults, left: Mapping[str, Train], force: AvailableWorkers, present: RunStrategy
    ) -> RunStrategy:
        """The best way to go on; the present one, unless another is clearly faster, for changing costs something.

        Packs may be taken apart; models that are on their way one by one are not put together.
        """
        profile = replace(self.profile(findings, left), largest=present.packs)
        if not profile.known():
            return present
        now = profile.choice(present.packs, present.width, present.share, present.teams)
        force = replace(force, start=0.0) if present.share else force  # what shares is there
        try:
            chosen, plan = self._choose(profile, force)
            goes_on = self._plan_of(now, replace(profile, packs_forced=True), force)  # though they may not pay any more
        except (ArithmeticError, ValueError, RegattaError):
            return present  # of a model that came later nothing may be known
        if chosen == now or goes_on.estimate.seconds < SWITCH * plan.estimate.seconds:
            return replace(present, plan=goes_on)
        return _decision(profile, chosen, plan)

    def _plan_of(self, choice: Strategy, profile: SweepProfile, force: AvailableWorkers) -> Plan:
        """The plan with that choice and no other."""
        site = self.site(force, profile)
        only = (lambda work, site, forced: iter([choice]),)
        forced = Constraints() if choice.teams else Constraints(width=choice.width)
        plan = choose(profile.work(), site, numerics="fast", forced=forced, rules=only)[1]
        return replace(plan, why="as before")

    def _choose(self, profile: SweepProfile, force: AvailableWorkers) -> tuple[Strategy, Plan]:
        work, site = profile.work(), self.site(force, profile)
        effort = int(PLAYED * estimate(work, site, Strategy()).seconds)
        forced = self.options.forced()
        chosen, plan = choose(
            work, site, numerics=self.options.numerics, forced=forced, effort=min(max(effort, LEAST_PLAYED), EFFORT)
        )
        unpacked = profile.why_not_packed() if forced.pack is None and force.packs else None
        unshared = profile.why_not_shared() if forced.share is None else None
        return chosen, replace(plan, rejected=(*plan.rejected, *filter(None, (unpacked, unshared))))

    def groups_may_pay(self, findings: ProfilingResults, wanted: Mapping[str, Train], force: AvailableWorkers) -> bool:
        """Whether it is worth finding out what exchanges cost: models take longer than workers have work."""
        free = self.options.numerics == "fast" and self.options.group is None and not self._dataset.availability
        if not (free and force.groups and force.workers > 1):
            return False
        profile = self.profile(findings, wanted)
        if not profile.known() or not any(model.build for model in profile.models.values()):
            return False
        load, chain = load_and_chain(profile.work(), self.site(force, profile), Strategy())
        return chain > CHAIN_BOUND * load

    def profile(self, findings: ProfilingResults, wanted: Mapping[str, Train]) -> SweepProfile:
        width = self.options.group or 1  # then pilots were measured in groups: what groups exchange is in it
        links = findings.links
        if width > 1:
            links = {findings.build(name, asked.config): Communication(0.0) for name, asked in wanted.items()}
        models = {
            name: ProfiledModel(
                asked.epochs, asked.config, self._measured(findings, name, width), findings.build(name, asked.config)
            )
            for name, asked in wanted.items()
            if asked.epochs > 0 and name not in findings.outcome.failed
        }
        slower = self._drift[True].since_first() - self._drift[False].since_first()
        rates = {build: _corrected(rate, math.exp(slower)) for build, rate in findings.rates.items()}
        sharable = not any(result.unsharable for result in findings.outcome.results.values())
        return SweepProfile(
            models, rates, links, packs_forced=bool(self.options.pack), sharable=sharable or bool(self.options.share)
        )

    def site(self, force: AvailableWorkers, profile: SweepProfile) -> ClusterSpec:
        peaks = [model.measured.peak_bytes for model in profile.models.values() if model.measured is not None]
        start = 0.0 if self.options.share else force.start  # what is asked for is started beside the workers
        return ClusterSpec(
            force.workers, memory=max([force.memory, *peaks]), unit=UNIT_SECONDS, cores=_free_cores(force),
            share_start=start, partitions=len(self._dataset.train), evals=len(self._dataset.eval),
        )  # fmt: skip

    # -- watching ----------------------------------------------------------------------------------------

    def observe(self, surprise: float, packed: bool) -> None:
        """A training unit took so much longer than estimated, as a logarithm."""
        self._drift[packed].take(surprise)

    def reason_to_replan(self, workers: int) -> str:
        """Why the plan should be made again; empty as long as it holds."""
        for packed, drift in self._drift.items():
            if drift.count >= max(ENOUGH, 2 * workers) * 2**self._plans and abs(drift.since_plan()) > DRIFT:
                what = "units of packs" if packed else "units"
                when = "at the last plan" if self._plans else "estimated"
                return f"{what} take {math.exp(drift.since_plan()):.2f} times as long as {when}"
        return ""

    def on_replanned(self) -> None:
        """A plan was made with what is known now."""
        self._plans += 1
        for drift in self._drift.values():
            drift.settle()

    def _measured(self, findings: ProfilingResults, name: str, width: int) -> ModelCosts | None:
        result = findings.outcome.results.get(name)
        if result is None:
            return None
        estimates, parts = findings.outcome.estimates, len(self._dataset.eval)
        pilot, rows = estimates.profile(name), estimates.rows("train")
        evaluate = pilot.eval * estimates.rows("eval") + (pilot.fixed + UNIT_SECONDS) * parts
        return ModelCosts(
            train=pilot.train * rows * width, evaluate=evaluate * width,
            fixed=pilot.fixed, prepare=pilot.prepare * rows, state_bytes=result.state_bytes,
            peak_bytes=result.peak_bytes, build=result.build,
            fetch=min(pilot.fixed, result.eval_fixed_seconds or 0.0),
        )  # fmt: skip


def _decision(profile: SweepProfile, chosen: Strategy, plan: Plan) -> RunStrategy:
    return RunStrategy(chosen.width, chosen.share, profile.pack_sizes(chosen), plan, profile.teams(chosen))


class _Drift:
    """How far units stray from their estimates: a mean of logarithms that forgets."""

    def __init__(self) -> None:
        self.count = 0  # since the plan was made
        self._seen, self._mean, self._planned = 0, 0.0, 0.0

    def take(self, surprise: float) -> None:
        self.count += 1
        self._seen += 1
        self._mean += (surprise - self._mean) / min(self._seen, 2 * ENOUGH)

    def since_first(self) -> float:
        return self._mean

    def since_plan(self) -> float:
        return self._mean - self._planned

    def settle(self) -> None:
        self._planned, self.count = self._mean, 0


def _corrected(rate: PackRate, slower: float) -> PackRate:
    return replace(rate, gain=max(rate.gain / slower, 1e-3))


def _free_cores(force: AvailableWorkers) -> int:
    """Of each worker, cores of this machine that no worker computes on."""
    if not force.here:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, cores - force.workers * force.threads) // force.workers
