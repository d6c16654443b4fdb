"""Keeps a run to its plan: packs, groups and sharing as it says; and to another plan when the first was wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from regatta.cluster import Cluster
from regatta.engine.controller.run_log import RunLog
from regatta.engine.controller.scheduled import ScheduledModels
from regatta.engine.controller.trials import Trial
from regatta.engine.messages import PackDone, TaskDone, WorkerReady
from regatta.engine.planning.packer import Packer
from regatta.engine.planning.planner import Planner, RunStrategy, available_workers
from regatta.engine.profiling.results import ProfilingResults
from regatta.engine.workers.base import WorkerPool
from regatta.engine.workers.groups import GroupPool
from regatta.errors import RegattaError
from regatta.format import count
from regatta.journal.journal import Record
from regatta.plan.schedule.estimates import Estimates
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.teams import Teams
from regatta.plan.schedule.units import Unit
from regatta.plan.strategy.groups_or_hops import ObservedCommunication
from regatta.plan.strategy.workload import team_index
from regatta.search.base import Train


class Replanner:
    """What is decided of a run, and the pool of its workers, in groups or not."""

    def __init__(
        self,
        pool: WorkerPool,
        planner: Planner,
        cluster: Cluster,
        run_log: RunLog,
        packer: Packer,
        scheduled: ScheduledModels,
        meetings: Path,
    ) -> None:
        self.pool = pool
        self.planner, self.cluster = planner, cluster
        self._run_log, self._packer, self.meetings = run_log, packer, meetings
        self._scheduled = scheduled
        self._decision = RunStrategy()
        self._alone = pool  # the workers, each by itself
        self._there: dict[str, WorkerReady] = {}  # workers by themselves that are there
        self._gone: set[str] = set()  # and those that will not come back
        self._infos: dict[str, dict[str, Any]] = {}  # of workers, or groups of them
        self._exchanges: dict[str, ObservedCommunication] = {}  # by build
        self._few = 0  # models, when groups were last thought of
        self._idle: list[int] = []  # teams, the same
        self._next: RunStrategy | None = None  # with other groups, once nothing is under way

    @property
    def estimates(self) -> Estimates:
        return self._findings.outcome.estimates

    @property
    def regroups(self) -> bool:
        """Whether workers are to be in other groups."""
        return self._next is not None

    def begin(
        self, findings: ProfilingResults, wanted: Mapping[str, Train], history: Sequence[Record]
    ) -> Mapping[str, WorkerReady]:
        """Decide, or remember what was decided; the workers that are there, in groups if the plan says so."""
        self._findings, self._there = findings, dict(findings.outcome.ready)
        self._gone = set(findings.outcome.lost)
        decision = RunStrategy.recalled(history)
        if decision is None:
            decision = self._decided(findings, wanted)
            self._run_log.write("plan", None, **decision.to_record(), reason="", changed=True)
        else:
            decision = self.planner.options.kept_to(decision, self.pool)
        return self._settled(decision if not self._gone or not self.pool.groupable else _alone(decision))

    def _settled(self, decision: RunStrategy) -> Mapping[str, WorkerReady]:
        """Workers as a decision has them; who is there."""
        self._take(decision)
        if not self.pool.groupable or decision.width == 1:
            return self._there
        formed = self._formed()
        if isinstance(self.pool, GroupPool) and not any(map(self.pool.is_deserted, self.teams())):
            return formed
        self._dissolve()  # somebody is gone meanwhile
        self._write(_alone(decision), "not all workers are there")
        self._take(_alone(decision))
        return self._there

    def _decided(self, findings: ProfilingResults, wanted: Mapping[str, Train]) -> RunStrategy:
        """What the planner says; figures that it can make nothing of must not keep a run from being trained."""
        try:
            return self.planner.decide(findings, wanted, available_workers(self.pool, self.cluster, findings.outcome))
        except (ArithmeticError, ValueError, RegattaError) as error:
            self._run_log.note("warning", f"No plan could be made ({error}): models hop one by one.")
            return RunStrategy(self.planner.options.group or 1, bool(self.planner.options.share))

    def on_worker_up(self, worker: str, info: dict[str, Any]) -> None:
        self._infos[worker] = info
        if self.pool is self._alone:
            self._there[worker] = WorkerReady(worker, info)
            self._gone.discard(worker)

    def on_worker_down(self, worker: str, for_good: bool) -> None:
        self._there.pop(worker, None)
        if not for_good:
            return
        if self.pool is self._alone:
            self._gone.add(worker)
        elif isinstance(self.pool, GroupPool) and any(map(self.pool.is_deserted, self.teams())):
            self._give_up_groups(f"{worker} will not come back")  # who is left of it can train by himself

    def teams(self) -> list[tuple[str, ...]]:
        """The workers that there are to be, those of each team together: groups are in the order of teams."""
        names = iter(self.pool.workers)
        return [tuple(islice(names, team.groups)) for team in self._decision.teams] or [self.pool.workers]

    def lost_workers(self) -> list[str]:
        """Workers that will not come back."""
        return [worker for worker in self.pool.workers if worker in self._gone]

    def team_of(self, model: str) -> int:
        """The number of the team that trains a scheduled model."""
        return team_index(self._decision.teams, self._scheduled.plan_name(model)) if self._decision.teams else 0

    def on_unit_done(self, unit: Unit, event: TaskDone | PackDone) -> None:
        """A unit is done; the planner compares what it took with its estimate."""
        parts = event.parts if isinstance(event, PackDone) else (event,)
        done = [part for part in parts if isinstance(part, TaskDone)]
        seconds, waited = event.end - event.start, sum(part.load_seconds for part in done)  # for data, told apart
        if unit.kind != "train":
            return
        took = seconds - waited if self._decision.share else seconds  # others prepare it, which is not in a unit
        self.planner.observe(self.estimates.log_error(unit, took), len(parts) > 1)
        if done[0].width > 1:
            build = self._findings.build(done[0].task.config, done[0].task.values)
            nodes = int(self._infos[event.worker].get("nodes", 1))
            self._exchanges.setdefault(build, ObservedCommunication()).hear(
                done[0].width, nodes, took, done[0].sync_seconds
            )

    def _learn_exchanges(self) -> None:
        """What units of groups have shown of exchanges, before another plan is made with it."""
        links = self._findings.links
        known = {build: links[build] for build in self._exchanges if build in links}
        links.update({build: self._exchanges[build].corrected(link) for build, link in known.items()})
        self.estimates.set_speedup(self._hands(self._decision))

    def replan(self, hopper: Hopper | Teams, trials: Iterable[Trial]) -> bool:
        """Make another plan where units prove the present one wrong, or few models are left; whether one was made."""
        if self.regroups:
            return False
        workers = hopper.worker_count()
        reason = (
            self.planner.reason_to_replan(workers)
            or self._too_few(hopper.models_left(), workers)
            or self._too_idle(hopper)
        )
        if not reason:
            return False
        active = [trial for trial in trials if not trial.stopped and not trial.failed]
        epochs = {trial.id: trial.epochs - self._run_log.record.configs[trial.id].epoch for trial in active}
        left = {trial.id: Train(dict(trial.values), epochs[trial.id]) for trial in active}
        force = available_workers(self._alone, self.cluster, self._findings.outcome)
        self._learn_exchanges()
        decision = self.planner.revise(self._findings, left, force, self._decision)
        if not decision.same_groups(self._decision) and not self._can_regroup():
            decision = replace(decision, width=self._decision.width, teams=self._decision.teams)
        self.planner.on_replanned()
        changed = not decision.same_way(self._decision)
        self._write(decision, reason, changed)
        if changed and decision.plan is not None:
            self._run_log.note("info", f"{reason}: from here on {decision.plan.name}.")
        if decision.same_groups(self._decision):
            self._take(decision)
        else:
            self._next = decision
        return True

    def blame_group(self, worker: str, error: str) -> bool:
        """Something failed in a group that nobody asked for: it is tried again by one worker, and so are the others."""
        if self.pool is self._alone or self._infos[worker].get("width", 1) == 1:
            return False
        if self._next is None or self._next.width > 1:
            self._findings.links = {}  # no groups any more
            self._give_up_groups(f"a group of workers failed ({error})")
        return True

    def _give_up_groups(self, reason: str) -> None:
        if self._next is not None and self._next.width == 1:
            return
        self._next = _alone(self._decision)
        self._write(self._next, reason)
        self._run_log.note("warning", f"{reason}: from here on models are trained by one worker each.")

    def _write(self, decision: RunStrategy, reason: str, changed: bool = True) -> None:
        self._run_log.write("plan", None, **decision.to_record(), reason=reason, changed=changed)

    def regroup(self) -> Mapping[str, WorkerReady]:
        """Put workers, all of them idle, into groups as the plan says; who is there then."""
        assert self._next is not None
        decision, self._next = self._next, None
        self._few, self._idle = 0, []
        self._dissolve()
        if decision.width > 1 and not self._can_regroup():
            decision = _alone(decision)
            self._write(decision, "not all workers are there")
        return self._settled(decision)

    def _dissolve(self) -> None:
        if isinstance(self.pool, GroupPool) and self.pool is not self._alone:
            self._gone |= self.pool.gone()
            self._there = self.pool.release()
            self.pool = self._alone

    def _can_regroup(self) -> bool:
        """Whether all workers are there, and nobody else, so that groups can be made of them, or taken apart."""
        if self.pool is not self._alone:
            return True
        return self.pool.groupable and self._there.keys() == set(self.pool.workers)

    def _formed(self) -> dict[str, WorkerReady]:
        widths = [team.width for team in self._decision.teams for _ in range(team.groups)]
        self.pool = GroupPool(self._alone, widths or self._decision.width, self.meetings, patient=True)
        awaited = () if self.cluster.kind == "ray" else self._alone.workers  # there may be no room for all on Ray
        events = self.pool.adopt(self._there, awaited)
        return {event.worker: event for event in events if isinstance(event, WorkerReady)}

    def _take(self, decision: RunStrategy) -> None:
        self._decision = decision
        self._packer.sizes, self._packer.rates = decision.packs, self._findings.rates
        self._packer.builds = self._findings.builds
        self.pool.share(decision.share)
        self.estimates.shared = decision.share
        self.estimates.speedup = self._hands(decision)

    def _hands(self, decision: RunStrategy) -> Callable[[str], float]:
        """So many times as fast as one worker is the group that the plan has made for a model."""
        links = self._findings.links.values()
        widths = {decision.width, *(team.width for team in decision.teams)} if links else set()
        faster = {width: width / (1 + fmean(link.ratio(width) for link in links)) for width in widths}
        wide = {model: team.width for team in decision.teams for model in team.models}
        usual = decision.teams[-1].width if decision.teams else decision.width  # of models that came later
        return lambda model: faster.get(wide.get(self._scheduled.plan_name(model), usual), 1.0)

    def _too_few(self, models: int, workers: int) -> str:
        """Whether models have become fewer than workers since that was last looked at."""
        if not self._findings.links or models in (0, self._few) or models >= workers:
            return ""
        self._few = models
        return f"{count(models, 'model')} for {count(workers, 'worker')}"

    def _too_idle(self, hopper: Hopper | Teams) -> str:
        """Whether other teams than when that was last looked at have nothing left to do."""
        before, self._idle = self._idle, hopper.idle() if isinstance(hopper, Teams) else []
        if not self._idle or self._idle == before:
            return ""
        workers = sum(len(self.teams()[team]) * self._decision.teams[team].width for team in self._idle)
        return f"{count(workers, 'worker')} without anything left to train"


def _alone(decision: RunStrategy) -> RunStrategy:
    """The same by workers that are in no group."""
    return replace(decision, width=1, teams=(), plan=None)
