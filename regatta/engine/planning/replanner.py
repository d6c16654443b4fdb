"""Applies the plan to a run: packs, groups and sharing. Replaces it by another plan when units prove it wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from regatta.cluster import Cluster
from regatta.engine.controller.run_log import RunLog
from regatta.engine.controller.scheduled_models import ScheduledModels
from regatta.engine.controller.trials import Trial
from regatta.engine.messages import PackDone, TaskDone, WorkerReady
from regatta.engine.planning.packer import Packer
from regatta.engine.planning.planner import Planner, RunStrategy, available_workers
from regatta.engine.profiling.models import ModelProfiles, ProfilingResults
from regatta.engine.workers.base import WorkerPool
from regatta.engine.workers.groups import GroupPool
from regatta.errors import RegattaError
from regatta.format import count
from regatta.journal.journal_file import Record
from regatta.plan.schedule.estimates import Estimates
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.teams import Teams
from regatta.plan.schedule.units import Unit
from regatta.plan.strategy.groups_or_hops import ObservedCommunication
from regatta.plan.strategy.workload import team_index
from regatta.search.base import Train


@dataclass(eq=False)
class Replanner:
    """The present strategy of a run, and the pool of its workers: each by itself, or in groups."""

    pool: WorkerPool
    planner: Planner
    cluster: Cluster
    run_log: RunLog
    packer: Packer
    scheduled: ScheduledModels
    rendezvous: Path

    def __post_init__(self) -> None:
        self._single_pool = self.pool  # the workers, each by itself
        self._ready: dict[str, WorkerReady] = {}  # single workers that are up
        self._lost: set[str] = set()  # single workers that will not come back
        self._infos: dict[str, dict[str, Any]] = {}  # of workers, or of groups
        self._results = ProfilingResults(ModelProfiles(Estimates([])))
        self._observed: dict[str, ObservedCommunication] = {}  # by build
        self._strategy = RunStrategy()
        self._next: RunStrategy | None = None  # a strategy with other groups, for when no unit is running
        self._models_left = 0  # when that was last a reason for another plan
        self._idle_teams: list[int] = []

    @property
    def estimates(self) -> Estimates:
        return self._results.models.estimates

    @property
    def regroups(self) -> bool:
        return self._next is not None

    # -- the beginning -------------------------------------------------------------------------------

    def begin(
        self, results: ProfilingResults, wanted: Mapping[str, Train], history: Sequence[Record]
    ) -> Mapping[str, WorkerReady]:
        """Make a plan, or take the one in the journal; return the workers that are up, in groups if it says so."""
        self._results, self._ready = results, dict(results.models.ready)
        self._lost = set(results.models.lost)
        strategy = RunStrategy.from_journal(history)
        if strategy is None:
            try:
                workers = available_workers(self.pool, self.cluster, results.models)
                strategy = self.planner.decide(results, wanted, workers)
            except (ArithmeticError, ValueError, RegattaError) as error:
                # Measurements that the planner cannot use must not keep a run from being trained.
                self.run_log.note("warning", f"No plan could be made ({error}): models hop one by one.")
                strategy = self.planner.default_strategy()
            self._write(strategy, "")
        else:
            strategy = self.planner.options.apply_to(strategy, self.pool)
        if self._lost and self.pool.groupable:
            strategy = strategy.without_groups()
        return self._apply_with_groups(strategy)

    def _apply_with_groups(self, strategy: RunStrategy) -> Mapping[str, WorkerReady]:
        """Apply a strategy, form its groups, and return the workers or groups that are up."""
        self._apply(strategy)
        if not self.pool.groupable or strategy.width == 1:
            return self._ready
        ready = self._form_groups()
        if isinstance(self.pool, GroupPool) and not any(map(self.pool.all_lost, self.teams())):
            return ready
        self._dissolve_groups()  # a worker was lost meanwhile
        self._write(strategy.without_groups(), "not all workers are there")
        self._apply(strategy.without_groups())
        return self._ready

    def _apply(self, strategy: RunStrategy) -> None:
        self._strategy = strategy
        self.packer.sizes, self.packer.rates = strategy.packs, self._results.pack_rates
        self.packer.builds = self._results.builds
        self.pool.share(strategy.share)
        self.estimates.shared = strategy.share
        self.estimates.speedup = self._group_speedup(strategy)

    def _group_speedup(self, strategy: RunStrategy) -> Callable[[str], float]:
        """By scheduled model, how many times as fast as one worker the group is that trains it."""
        links = self._results.communication.values()
        widths = {strategy.width, *(team.width for team in strategy.teams)} if links else set()
        speedups = {width: width / (1 + fmean(link.ratio(width) for link in links)) for width in widths}
        width_of = {model: team.width for team in strategy.teams for model in team.models}
        default = strategy.teams[-1].width if strategy.teams else strategy.width  # of models that came later
        return lambda model: speedups.get(width_of.get(self.scheduled.plan_name(model), default), 1.0)

    # -- workers and teams ---------------------------------------------------------------------------

    def on_worker_up(self, worker: str, info: dict[str, Any]) -> None:
        self._infos[worker] = info
        if self.pool is self._single_pool:
            self._ready[worker] = WorkerReady(worker, info)
            self._lost.discard(worker)

    def on_worker_down(self, worker: str, for_good: bool) -> None:
        self._ready.pop(worker, None)
        if not for_good:
            return
        if self.pool is self._single_pool:
            self._lost.add(worker)
        elif isinstance(self.pool, GroupPool) and any(map(self.pool.all_lost, self.teams())):
            self._give_up_groups(f"{worker} will not come back")  # the rest of its group can train singly

    def teams(self) -> list[tuple[str, ...]]:
        """The workers of each team. The pool lists its groups in the order of the teams."""
        names = iter(self.pool.workers)
        return [tuple(islice(names, team.groups)) for team in self._strategy.teams] or [self.pool.workers]

    def lost_workers(self) -> list[str]:
        return [worker for worker in self.pool.workers if worker in self._lost]

    def team_of(self, model: str) -> int:
        return team_index(self._strategy.teams, self.scheduled.plan_name(model)) if self._strategy.teams else 0

    # -- another plan --------------------------------------------------------------------------------

    def on_unit_done(self, unit: Unit, event: TaskDone | PackDone) -> None:
        """Let the planner compare the time of a unit with its estimate."""
        if unit.kind != "train":
            return
        parts = event.parts if isinstance(event, PackDone) else (event,)
        done = [part for part in parts if isinstance(part, TaskDone)]
        seconds = event.end - event.start
        if self._strategy.share:  # the estimate does not include waiting for data that others preprocess
            seconds -= sum(part.load_seconds for part in done)
        self.planner.observe(self.estimates.log_error(unit, seconds), len(parts) > 1)
        if done[0].width > 1:
            build = self._results.builds.label_of(done[0].task.config, done[0].task.values)
            nodes = int(self._infos[event.worker].get("nodes", 1))
            observed = self._observed.setdefault(build, ObservedCommunication())
            observed.add_unit(done[0].width, nodes, seconds, done[0].sync_seconds)

    def replan(self, hopper: Hopper | Teams, trials: Iterable[Trial]) -> bool:
        """Make another plan where there is a reason to, and return whether one was made."""
        if self.regroups:
            return False
        reason = self._reason_to_replan(hopper)
        if not reason:
            return False
        configs = self.run_log.record.configs
        left = {
            trial.id: Train(dict(trial.values), trial.epochs - configs[trial.id].epoch)
            for trial in trials
            if not trial.stopped and not trial.failed
        }
        workers = available_workers(self._single_pool, self.cluster, self._results.models)
        for build, observed in self._observed.items():
            if build in self._results.communication:  # correct the costs of groups by the units that groups have done
                self._results.communication[build] = observed.correct(self._results.communication[build])
        self.estimates.set_speedup(self._group_speedup(self._strategy))
        strategy = self.planner.revise(self._results, left, workers, self._strategy)
        if not strategy.same_groups(self._strategy) and not self._can_regroup():
            strategy = replace(strategy, width=self._strategy.width, teams=self._strategy.teams)
        self.planner.on_replanned()
        changed = not strategy.same_strategy(self._strategy)
        self._write(strategy, reason, changed)
        if changed and strategy.plan is not None:
            self.run_log.note("info", f"{reason}: from here on {strategy.plan.name}.")
        if strategy.same_groups(self._strategy):
            self._apply(strategy)
        else:
            self._next = strategy
        return True

    def _reason_to_replan(self, hopper: Hopper | Teams) -> str:
        """Units take other times than estimated, or workers have become idle since that was last looked at."""
        models, workers = hopper.models_left(), hopper.worker_count()
        reason = self.planner.reason_to_replan(workers)
        if reason:
            return reason
        if self._results.communication and 0 < models < workers and models != self._models_left:
            self._models_left = models
            return f"{count(models, 'model')} for {count(workers, 'worker')}"
        before, self._idle_teams = self._idle_teams, hopper.idle() if isinstance(hopper, Teams) else []
        if not self._idle_teams or self._idle_teams == before:
            return ""
        teams = self.teams()
        workers = sum(len(teams[team]) * self._strategy.teams[team].width for team in self._idle_teams)
        return f"{count(workers, 'worker')} without anything left to train"

    def blame_group(self, worker: str, error: str) -> bool:
        """Whether a failure may be due to a group of the plan; if so, the model is trained again by one worker."""
        if self.pool is self._single_pool or self._infos[worker].get("width", 1) == 1:
            return False
        if self._next is None or self._next.width > 1:
            self._results.communication = {}  # no later plan forms groups
            self._give_up_groups(f"a group of workers failed ({error})")
        return True

    def _give_up_groups(self, reason: str) -> None:
        if self._next is not None and self._next.width == 1:
            return
        self._next = self._strategy.without_groups()
        self._write(self._next, reason)
        self.run_log.note("warning", f"{reason}: from here on models are trained by one worker each.")

    def _write(self, strategy: RunStrategy, reason: str, changed: bool = True) -> None:
        self.run_log.write("plan", None, **strategy.to_record(), reason=reason, changed=changed)

    # -- groups --------------------------------------------------------------------------------------

    def regroup(self) -> Mapping[str, WorkerReady]:
        """Put the workers, which must be idle, into the groups of the next strategy; return those that are up."""
        assert self._next is not None
        strategy, self._next = self._next, None
        self._models_left, self._idle_teams = 0, []
        self._dissolve_groups()
        if strategy.width > 1 and not self._can_regroup():
            strategy = strategy.without_groups()
            self._write(strategy, "not all workers are there")
        return self._apply_with_groups(strategy)

    def _can_regroup(self) -> bool:
        """Whether the workers are in groups, or all of the pool's workers are up, and no others."""
        if self.pool is not self._single_pool:
            return True
        return self.pool.groupable and self._ready.keys() == set(self.pool.workers)

    def _form_groups(self) -> dict[str, WorkerReady]:
        widths = [team.width for team in self._strategy.teams for _ in range(team.groups)]
        self.pool = GroupPool(self._single_pool, widths or self._strategy.width, self.rendezvous, wait_for_workers=True)
        awaited = () if self.cluster.kind == "ray" else self._single_pool.workers  # Ray may not have room for all
        events = self.pool.adopt(self._ready, awaited)
        return {event.worker: event for event in events if isinstance(event, WorkerReady)}

    def _dissolve_groups(self) -> None:
        if isinstance(self.pool, GroupPool) and self.pool is not self._single_pool:
            self._lost |= self.pool.lost_workers()
            self._ready = self.pool.release()
            self.pool = self._single_pool
