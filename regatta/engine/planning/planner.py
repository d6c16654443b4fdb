"""Makes the plan of a run from profiling results, and notices when units prove the plan wrong."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from regatta.cluster import Cluster
from regatta.data import Dataset
from regatta.engine.profiling.models import ModelProfiles, ProfilingResults
from regatta.engine.profiling.packs import has_long_steps
from regatta.engine.workers.base import WorkerPool
from regatta.errors import RegattaError
from regatta.journal.journal_file import Record
from regatta.plan.strategy.choose import MAX_SIMULATED_UNITS, Constraints, Numerics, choose
from regatta.plan.strategy.costs import UNIT_PAUSE_S, ClusterSpec, Strategy, estimate, load_and_chain
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.plan.strategy.plan_tree import Plan
from regatta.plan.strategy.workload import ModelCosts, PlannedModel, SweepProfile, Team
from regatta.search.base import Train

DEFAULT_START_SECONDS = 2.0  # until a new process can preprocess data, where that was not measured
SIMULATED_UNITS_PER_SECOND = 40.0  # units that may be simulated to compare plans, for each second of the run
MIN_SIMULATED_UNITS = 200
GROUPS_CHAIN_FACTOR = 1.05  # groups may pay where a model takes this much longer than a worker has work
MAX_DRIFT = math.log(1.4)  # units that differ more from their estimates call for another plan
MIN_UNITS = 8  # and two of each worker, before a plan is called wrong; twice as many after each plan
MIN_SPEEDUP = 1.1  # of another plan over the present one


@dataclass(frozen=True)
class PlanOptions:
    """What the sweep fixes, and what it leaves to the plan (None)."""

    pack: int | bool | None = None
    share: bool | None = None
    group: int | None = None
    numerics: Numerics = "exact"

    def apply_to(self, strategy: RunStrategy, pool: WorkerPool) -> RunStrategy:
        """The strategy of an earlier controller, as far as it agrees with these options and this pool."""
        needed = sum(team.width * team.groups for team in strategy.teams) or strategy.width
        spare = len(pool.workers) - needed
        narrowest = min((team.width for team in strategy.teams), default=len(pool.workers) + 1)  # more would idle
        fits = self.numerics == "fast" and pool.groupable and 0 <= spare < narrowest
        width = self.group or (strategy.width if fits else 1)
        teams = strategy.teams if fits and self.group is None else ()
        share = strategy.share if self.share is None else self.share
        packs = {} if self.pack is False else strategy.packs
        return replace(strategy, width=width, share=share, packs=packs, teams=teams)


@dataclass(frozen=True)
class RunStrategy:
    """How a run is trained: width of groups, sharing, largest packs by build, and the plan that explains it."""

    width: int = 1  # with teams, groups have several widths, and this is the largest
    share: bool = False
    packs: Mapping[str, int] = field(default_factory=dict)
    plan: Plan | None = None
    teams: tuple[Team, ...] = ()

    def same_strategy(self, other: RunStrategy) -> bool:
        return self.same_groups(other) and (self.share, dict(self.packs)) == (other.share, dict(other.packs))

    def same_groups(self, other: RunStrategy) -> bool:
        return (self.width, self.teams) == (other.width, other.teams)

    def without_groups(self) -> RunStrategy:
        return replace(self, width=1, teams=(), plan=None)

    def to_record(self) -> dict[str, Any]:
        plan = None if self.plan is None else self.plan.to_json()
        teams = [asdict(team) for team in self.teams]
        return {"width": self.width, "share": self.share, "packs": dict(self.packs), "teams": teams, "plan": plan}

    @classmethod
    def from_journal(cls, history: Iterable[Record]) -> RunStrategy | None:
        lines = [line for line in history if line["event"] == "plan"]
        if not lines:
            return None
        line = lines[-1]
        plan = None if line["plan"] is None else Plan.from_json(line["plan"])
        teams = tuple(Team(team["width"], team["groups"], tuple(team["models"])) for team in line.get("teams", ()))
        return cls(line["width"], line["share"], line["packs"], plan, teams)


@dataclass(frozen=True)
class AvailableWorkers:
    """The workers that a plan is for: their number, threads and memory, and what they can do."""

    workers: int
    spare_cores: int = 0  # that no worker computes on, for each worker
    packs: bool = True
    groups: bool = True
    memory: float = math.inf  # bytes of a device for each worker
    start_seconds: float = DEFAULT_START_SECONDS  # until a new process can preprocess data


def available_workers(pool: WorkerPool, cluster: Cluster, models: ModelProfiles) -> AvailableWorkers:
    """The workers of a pool, counting each member of a group. What the ready ones report holds for all."""
    width = max((int(event.info.get("width", 1)) for event in models.ready.values()), default=cluster.group or 1)
    groups = len(pool.workers) - len(models.lost)
    if cluster.kind == "ray" and models.ready:
        groups = len(models.ready)
    elif cluster.kind == "inline":
        groups = 1  # inline workers take turns
    workers = groups * width
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    spare = max(0, cores - workers * (cluster.threads or 1)) // max(1, workers)
    return AvailableWorkers(
        workers,
        spare_cores=0 if cluster.kind == "ray" else spare,  # the cores of other machines are not known
        packs=pool.packs,
        groups=pool.groupable,
        memory=math.inf if models.memory is None else models.memory,
        start_seconds=DEFAULT_START_SECONDS if models.start_seconds is None else models.start_seconds,
    )


class Planner:
    def __init__(self, dataset: Dataset, options: PlanOptions) -> None:
        self._dataset, self.options = dataset, options
        self._drift = {False: _Drift(), True: _Drift()}  # of single models, and of packs
        self._replans = 0

    def decide(self, results: ProfilingResults, wanted: Mapping[str, Train], workers: AvailableWorkers) -> RunStrategy:
        """The fastest strategy to train what is wanted."""
        profile = self.profile(results, wanted)
        if not profile.known():
            return self.default_strategy()
        return _run_strategy(profile, *self._choose(profile, workers))

    def default_strategy(self) -> RunStrategy:
        """The strategy without a plan: the options, and hopping for the rest."""
        return RunStrategy(self.options.group or 1, bool(self.options.share))

    def revise(
        self, results: ProfilingResults, left: Mapping[str, Train], workers: AvailableWorkers, present: RunStrategy
    ) -> RunStrategy:
        """The strategy to go on with. Changing costs something, so another one must be clearly faster."""
        # Packs may be taken apart, but models that train singly are not packed.
        profile = replace(self.profile(results, left), largest_packs=present.packs)
        if not profile.known():
            return present
        current = profile.strategy(present.packs, present.width, present.share, present.teams)
        if present.share:
            workers = replace(workers, start_seconds=0.0)  # the preprocess workers are running
        try:
            chosen, plan = self._choose(profile, workers)
            # The present packs must be in the estimate, even if they do not pay any more.
            current_plan = self._plan_of(current, replace(profile, packs_forced=True), workers)
        except (ArithmeticError, ValueError, RegattaError):
            return present  # a model that came later may not be profiled
        if chosen == current or current_plan.estimate.seconds < MIN_SPEEDUP * plan.estimate.seconds:
            return replace(present, plan=current_plan)
        return _run_strategy(profile, chosen, plan)

    def _plan_of(self, strategy: Strategy, profile: SweepProfile, workers: AvailableWorkers) -> Plan:
        only = (lambda work, cluster, constraints: iter([strategy]),)
        constraints = Constraints() if strategy.teams else Constraints(width=strategy.width)
        cluster = self.cluster_spec(workers, profile)
        plan = choose(profile.work(), cluster, numerics="fast", constraints=constraints, rules=only)[1]
        return replace(plan, why="as before")

    def _choose(self, profile: SweepProfile, workers: AvailableWorkers) -> tuple[Strategy, Plan]:
        work, cluster = profile.work(), self.cluster_spec(workers, profile)
        units = int(SIMULATED_UNITS_PER_SECOND * estimate(work, cluster, Strategy()).seconds)
        constraints = Constraints(self.options.pack, self.options.group, self.options.share)
        chosen, plan = choose(
            work,
            cluster,
            numerics=self.options.numerics,
            constraints=constraints,
            max_units=min(max(units, MIN_SIMULATED_UNITS), MAX_SIMULATED_UNITS),
        )
        unpacked = profile.why_not_packed() if constraints.pack is None and workers.packs else None
        unshared = profile.why_not_shared() if constraints.share is None else None
        return chosen, replace(plan, rejected=(*plan.rejected, *filter(None, (unpacked, unshared))))

    def groups_may_pay(self, results: ProfilingResults, wanted: Mapping[str, Train], workers: AvailableWorkers) -> bool:
        """Whether to measure what groups cost: they may pay where a model takes longer than workers have work."""
        allowed = self.options.numerics == "fast" and self.options.group is None and not self._dataset.availability
        if not (allowed and workers.groups and workers.workers > 1):
            return False
        profile = self.profile(results, wanted)
        if not profile.known() or not any(model.build for model in profile.models.values()):
            return False
        load, chain = load_and_chain(profile.work(), self.cluster_spec(workers, profile), Strategy())
        return chain > GROUPS_CHAIN_FACTOR * load

    def profile(self, results: ProfilingResults, wanted: Mapping[str, Train]) -> SweepProfile:
        """The profiles of the wanted models, as `plan` takes them."""
        width = self.options.group or 1
        communication: Mapping[str, Communication] = results.communication
        builds = {name: results.builds.label_of(name, asked.config) for name, asked in wanted.items()}
        if width > 1:  # the models were profiled in groups, so their times include the communication
            communication = dict.fromkeys(builds.values(), Communication(0.0))
        profiled = results.models.profiles
        for name, asked in wanted.items():
            results.models.estimates.add_model(name, asked.config)
        models = {
            name: PlannedModel(
                asked.epochs, asked.config, self._costs(results, name, width), builds[name], profiled=name in profiled
            )
            for name, asked in wanted.items()
            if asked.epochs > 0 and name not in results.models.failed
        }
        # Packs gain as much less as their units have been slower than those of single models.
        slower = math.exp(self._drift[True].mean - self._drift[False].mean)
        rates = {build: replace(rate, gain=max(rate.gain / slower, 1e-3)) for build, rate in results.pack_rates.items()}
        sharable = bool(self.options.share) or not any(p.unsharable for p in results.models.profiles.values())
        long_steps = all(
            has_long_steps(results.models.profiles[name], asked.config)
            for name, asked in wanted.items()
            if name in results.models.profiles
        )
        return SweepProfile(
            models, rates, communication, bool(self.options.pack), sharable=sharable, long_steps=long_steps
        )

    def _costs(self, results: ProfilingResults, name: str, width: int) -> ModelCosts:
        """The costs of a model: as measured, or as those of the models like it where it was not profiled."""
        estimates, eval_units, profiles = results.models.estimates, len(self._dataset.eval), results.models.profiles
        like = [name] if name in profiles else estimates.models_like(name)
        measured = [profiles[other] for other in like if other in profiles] or list(profiles.values())
        learned, rows = estimates.profile(name), estimates.rows("train")
        evaluate = learned.eval * estimates.rows("eval") + (learned.fixed + UNIT_PAUSE_S) * eval_units
        return ModelCosts(
            train=learned.train * rows * width,
            evaluate=evaluate * width,
            fixed=learned.fixed,
            prepare=learned.prepare * rows,
            state_bytes=_mean([profile.state_bytes for profile in measured]),
            peak_bytes=max((profile.peak_bytes for profile in measured), default=0.0),
            fetch=min(learned.fixed, _mean([profile.eval_fixed_seconds or 0.0 for profile in measured])),
        )

    def cluster_spec(self, workers: AvailableWorkers, profile: SweepProfile) -> ClusterSpec:
        peaks = [model.costs.peak_bytes for model in profile.models.values()]
        return ClusterSpec(
            workers.workers,
            memory=max([workers.memory, *peaks]),
            unit=UNIT_PAUSE_S,
            cores=workers.spare_cores,
            share_start=0.0 if self.options.share else workers.start_seconds,  # if asked for, starts with the workers
            partitions=len(self._dataset.train),
            evals=len(self._dataset.eval),
        )

    def observe(self, log_error: float, packed: bool) -> None:
        """A training unit is done; `log_error` is the logarithm of its real over its estimated time."""
        self._drift[packed].add(log_error)

    def reason_to_replan(self, workers: int) -> str:
        """Why units prove the plan wrong; empty as long as it holds."""
        for packed, drift in self._drift.items():
            if drift.units >= max(MIN_UNITS, 2 * workers) * 2**self._replans and abs(drift.since_plan()) > MAX_DRIFT:
                what = "units of packs" if packed else "units"
                when = "at the last plan" if self._replans else "estimated"
                return f"{what} take {math.exp(drift.since_plan()):.2f} times as long as {when}"
        return ""

    def on_replanned(self) -> None:
        """A plan was made with the present estimates."""
        self._replans += 1
        for drift in self._drift.values():
            drift.mean_at_plan, drift.units = drift.mean, 0


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _run_strategy(profile: SweepProfile, chosen: Strategy, plan: Plan) -> RunStrategy:
    return RunStrategy(chosen.width, chosen.share, profile.pack_sizes(chosen), plan, profile.teams(chosen))


class _Drift:
    """How far units are from their estimates: a running mean of logarithms that forgets old units."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.units = 0  # since the plan was made
        self._all_units = 0
        self.mean_at_plan = 0.0

    def add(self, log_error: float) -> None:
        self.units += 1
        self._all_units += 1
        self.mean += (log_error - self.mean) / min(self._all_units, 2 * MIN_UNITS)

    def since_plan(self) -> float:
        return self.mean - self.mean_at_plan
