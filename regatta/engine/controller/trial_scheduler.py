"""Gives trials to the hop scheduler: in packs where the plan has packs, one by one otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from regatta.engine.controller.pending_records import PendingRecords
from regatta.engine.controller.run_log import RunLog
from regatta.engine.controller.scheduled_models import ScheduledModel, ScheduledModels
from regatta.engine.controller.settings import RunSettings
from regatta.engine.controller.state_files import StateFiles
from regatta.engine.controller.trials import Progress, Trial
from regatta.engine.planning.packer import Packer
from regatta.engine.planning.replanner import Replanner
from regatta.plan.schedule.estimates import Estimates
from regatta.plan.schedule.hopper import Hopper
from regatta.plan.schedule.teams import Teams


@dataclass(eq=False)
class TrialScheduler:
    """The hop scheduler of a run, and the models that it schedules."""

    settings: RunSettings
    run_log: RunLog
    state_files: StateFiles
    scheduled: ScheduledModels
    packer: Packer
    replanner: Replanner
    estimates: Estimates

    def __post_init__(self) -> None:
        self.hopper = self._new_hopper()

    def restart(self) -> None:
        """Workers are in other groups now: a new hop scheduler, which gets the trials that have units left."""
        self.scheduled.restart(self.hopper.model_units_left)
        self.hopper = self._new_hopper()

    def want(self, trials: Iterable[Trial]) -> None:
        """Schedule these trials as far as they are wanted now."""
        for trial in trials:
            self.run_log.declare(trial)
            self.estimates.add_model(trial.id, trial.values)
            if trial.failed or trial.held:
                continue
            model = self.scheduled.model_of(trial)
            if model is not None:
                self._update(model)
            elif not trial.scheduled or not trial.stopped:
                trial.scheduled = True
                self.scheduled.wait(trial)

    def reschedule(self, trial: Trial) -> None:
        """Let a trial go on from the units that count, in another model than before."""
        model = self.scheduled.model_of(trial)
        self.scheduled.leave(trial)
        if model is not None:
            self._update(model)
        trial.scheduled = True
        self.scheduled.wait(trial)

    def drop(self, trial: Trial) -> None:
        """A trial has failed or is held back: its model goes on without it."""
        model = self.scheduled.model_of(trial)
        if model is not None:
            self._update(model)

    def split(self, model: ScheduledModel, alone: bool = False) -> None:
        """Take a model apart. Its trials go on in other models, or one by one."""
        self.scheduled.disband(model, alone)
        self.hopper.stop_model(model.name)

    def split_unplanned(self) -> None:
        """Take apart the models that are larger than a new plan has them."""
        for model in list(self.scheduled):
            if model.trials and self.hopper.model_units_left(model.name) and not self.packer.fits(model):
                self.split(model)

    def add_waiting(self, pending: PendingRecords) -> None:
        """Give the hop scheduler the waiting trials whose units all count."""
        record = self.run_log.record
        while ready := self.scheduled.take_ready(pending.is_empty):
            progress = {
                trial: self.state_files.restore(trial, record) for trial in ready if not (trial.failed or trial.held)
            }
            expected = max(self.hopper.worker_count(), len(self.replanner.pool.workers))  # some come up later
            idle = max(1, expected - self.hopper.models_left())
            for trials in self.packer.form(progress, idle):
                self._add(trials, progress[trials[0]], pending)

    def _add(self, trials: Sequence[Trial], progress: Progress, pending: PendingRecords) -> None:
        first = trials[0]
        model = self.scheduled.add(trials, {epoch for epoch, _ in progress.evals})
        if model.name != first.id:
            names = [trial.id for trial in trials]
            self.estimates.set_pack(model.name, names, self.packer.gain(model), self.packer.fixed(model))
        if len(trials) > 1:
            self.run_log.note("info", self.packer.describe(model))
        self.hopper.add_model(
            model.name,
            max(first.epochs, progress.epochs),
            done=progress.epochs,
            visited=progress.visited,
            evals=progress.evals,
            order=self.settings.orders(first.id, first.epochs),
            most=first.most,
        )
        for trial in trials:
            if trial.stopped:
                self.hopper.stop_model(model.name)
            for epoch in progress.reports:
                pending.add_report(trial, epoch)
            pending.write_ready(trial)

    def _update(self, model: ScheduledModel) -> None:
        """Train a model as far as its trials are wanted now."""
        active = model.active()
        if active:
            epochs = max(trial.epochs for trial in active)
            self.hopper.extend_model(model.name, epochs, order=self.settings.orders(active[0].id, epochs))
            return
        self.hopper.stop_model(model.name)
        if model.is_pack:  # trials that have trained enough may still have to be evaluated
            self.scheduled.disband(model)

    def _new_hopper(self) -> Hopper | Teams:
        data, seed = self.settings.dataset, self.settings.goal.seed
        teams = self.replanner.teams()
        hoppers = [
            Hopper(len(data.train), len(data.eval), estimates=self.estimates, rule=self.settings.rule, seed=seed)
            for _ in teams
        ]
        if len(hoppers) == 1:
            return hoppers[0]
        team_of_worker = {worker: place for place, team in enumerate(teams) for worker in team}
        return Teams(hoppers, team_of_worker.__getitem__, self.replanner.team_of)
