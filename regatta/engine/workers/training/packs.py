"""Trains the members of a pack: several models of one task together.

A member stays loaded from unit to unit as long as the next unit begins with the state that it has. Models that cannot
be trained together are trained one after another, with the same bits as result.
"""

from __future__ import annotations

import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from regatta.configuration import Scalar
from regatta.data import batch_order
from regatta.engine.messages import PackDone, PackProfile, Recipe, Task, TaskDone, TaskFailed
from regatta.engine.workers.training.model_cache import MAX_MODELS, MAX_STATE_BYTES, CachedModel
from regatta.engine.workers.training.unit import UnitCosts, batch_size
from regatta.engine.workers.training.unsaved_state import unsaved_state
from regatta.errors import DiskError
from regatta.frameworks.base import Indices, bind_optional
from regatta.plan.strategy.form_packs import ANY_CUDA_BUILD
from regatta.seeds import unit_seed

if TYPE_CHECKING:
    import torch

    from regatta.engine.workers.training.trainer import Trainer
    from regatta.pack import Member, Pack

WARM_UP_STEPS = 24  # a pack tries on its first steps how to train its members
TIMED_STEPS = ((8, 40), (4, 20))  # few and many steps: the fixed cost of a call is in both; fewer where steps are long
LONG_STEP_S = 2e-3
MAX_TIMED_ALONE = 4  # members of one build: their steps alone stand for those of all
STEPS_ALONE = 24


def build_of(cached: CachedModel, recipe: Recipe, values: Mapping[str, Scalar], device: str) -> str:
    """Equal for models that are worth trying as a pack; "" for those that cannot be in one."""
    trainee = cached.trainee
    if cached.framework.NAME != "torch" or recipe.loss_fn is None or recipe.train_fn or trainee.optimizer is None:
        return ""
    if device.startswith("cuda"):
        return ANY_CUDA_BUILD  # elsewhere, only models with the same architecture, batch size and kind of optimizer
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in trainee.model.named_parameters()]
    optimizer, schedules = type(trainee.optimizer).__qualname__, sorted(trainee.schedules)
    parts = (repr(trainee.model), shapes, optimizer, schedules, values.get("batch_size"))
    return blake3(repr(parts).encode()).hexdigest(length=8)


@dataclass
class _LoadedMember:
    """A member of the pack with its model, and the file that holds its present state."""

    cached: CachedModel
    member: Member
    initial_unsaved: object  # what the new model held outside its state
    state: Path | None
    seed: int = 0

    def tensors(self) -> list[torch.Tensor]:
        """Its tensors in the memory that the pack trains in."""
        model = self.cached.trainee.model
        return [tensor.data for tensor in (*model.parameters(), *model.buffers())]


class PackTrainer:
    """Runs the packs of one worker."""

    def __init__(self, trainer: Trainer) -> None:
        from regatta.pack import Rates

        self._trainer = trainer
        self._rates = Rates()
        self._pack = self._new_pack()
        self._loaded: OrderedDict[str, _LoadedMember] = OrderedDict()
        self._alone: set[str] = set()  # configurations that change settings of the whole process
        self._noted: set[str] = set()

    def run(self, task: Task) -> PackDone | TaskFailed:
        """Run a task for all members; an exception of one member is the failure of that member."""
        start = time.time()
        tasks = (replace(task, packed_with=()), *task.packed_with)
        try:
            parts = self._train(tasks) if task.kind == "train" else [self._evaluate(each) for each in tasks]
        except (KeyboardInterrupt, DiskError) as error:
            self._reset()
            if isinstance(error, KeyboardInterrupt):
                raise
            return self._trainer.failure(task, start, error)
        except BaseException:  # noqa: BLE001 (a failure of the pack itself: its members are trained one by one)
            traceback.print_exc()
            self._reset()
            parts = [self._trainer.run_one(each) for each in tasks]
        disk_full = next((part for part in parts if isinstance(part, TaskFailed) and part.disk), None)
        if disk_full is not None:
            return replace(disk_full, task=task)
        return PackDone(self._trainer.worker, task, start, time.time(), tuple(parts), self._take_notes())

    def profile(self, task: Task) -> PackProfile:
        """Measure how much faster new models train in a pack than one after another."""
        tasks = (replace(task, packed_with=()), *task.packed_with)
        trainer, pack = self._trainer, self._new_pack()
        models = [trainer.build(each.values) for each in tasks]
        build = build_of(models[0], trainer.setup.recipe, task.values, trainer.device)
        if models[-1].changed_settings:
            reason = f"model_fn changes {', '.join(models[-1].changed_settings)} for the whole process"
            return PackProfile(build, len(tasks), 1.0, reason)
        data = trainer.partition(task, models[0].framework, UnitCosts())
        timed_alone = tasks if build == ANY_CUDA_BUILD else tasks[:MAX_TIMED_ALONE]
        alone = fmean(self._step_alone(each, data) for each in timed_alone) * len(tasks)
        self._fill(pack, models, tasks, data)
        together = _step_seconds(pack, data)
        failed = next((member.error for member in pack.members if member.error is not None), None)
        if failed is not None:
            return PackProfile(build, len(tasks), 1.0, f"a member fails: {failed}")
        models = [trainer.build(each.values) for each in tasks]
        start = time.perf_counter()
        self._fill(self._new_pack(), models, tasks, data)  # as the next unit will find them
        fixed = max(0.0, time.perf_counter() - start - WARM_UP_STEPS * together) / len(tasks)
        return PackProfile(build, len(tasks), alone / together, pack.plan()[0].reason, fixed)

    def _fill(self, pack: Pack, models: Sequence[CachedModel], tasks: Sequence[Task], data: Any) -> None:
        for cached, each in zip(models, tasks, strict=True):
            size = batch_size(each.values)
            self._add(pack, cached, each, lambda rows, epoch, size=size: batch_order(rows, size, epoch))
        pack.train(data, steps=WARM_UP_STEPS)
        _synchronize(pack)

    def _step_alone(self, task: Task, data: Any) -> float:
        """Seconds of a step of one model by itself."""
        from regatta.engine.workers.training.profiler import time_batches

        cached, loss_fn, values = self._trainer.build(task.values), self._trainer.setup.recipe.loss_fn, task.values
        order = batch_order(cached.framework.rows(data), batch_size(values), 0)
        train = partial(cached.framework.train, cached.trainee, data, loss_fn=loss_fn, config=dict(values))
        return time_batches(train, order, max_batches=STEPS_ALONE).each

    def _evaluate(self, task: Task) -> TaskDone | TaskFailed:
        """Evaluate a member: the loaded model, if it has the state in question."""
        loaded = self._loaded.get(task.config)
        if loaded is None or loaded.state is None or loaded.state != task.state_in:
            return self._trainer.run_one(task)
        before, unsaved = loaded.tensors(), _unsaved(loaded.cached)
        values = [tensor.clone() for tensor in before]
        done = self._trainer.run_one(task, loaded.cached)
        if _changed(loaded, before, values) or _unsaved(loaded.cached) != unsaved:  # an eval_fn may change anything
            self._unload(task.config)
        return done

    def _train(self, tasks: Sequence[Task]) -> list[TaskDone | TaskFailed]:
        trainer, start = self._trainer, time.time()
        costs = {task.config: UnitCosts() for task in tasks}
        errors: dict[str, BaseException] = {}
        pack_task = replace(tasks[0], packed_with=tuple(tasks[1:]))
        with trainer.keep_settings():
            trainer.begin(pack_task, costs[tasks[0].config])
            present: dict[str, _LoadedMember] = {}
            for task in tasks:
                if task.config in self._alone:
                    continue
                try:
                    present[task.config] = self._load(task, costs[task.config])
                except (KeyboardInterrupt, DiskError):
                    raise
                except BaseException as error:  # noqa: BLE001 (the user's code may raise anything)
                    errors[task.config] = error
                if trainer.settings.changed():  # by model_fn: other members must not be trained with that
                    trainer.settings.restore()
                    self._alone.add(task.config)
                    self._unload(task.config)
                    present.pop(task.config, None)
            rows = 0
            if present:
                framework = next(iter(present.values())).cached.framework
                data = trainer.partition(pack_task, framework, costs[tasks[0].config])
                self._pack.train(data, epochs={loaded.member: 1 for loaded in present.values()})
                changed = trainer.settings.changed()
                if changed:  # by a loss_fn, and no one knows which members were trained with that
                    self._alone.update(present)
                    raise RuntimeError(f"Training changed {', '.join(changed)} for all members of the pack.")
                rows = framework.rows(data)
            done = {
                task.config: self._finish(task, present, errors, costs[task.config], rows)
                for task in tasks
                if task.config not in self._alone
            }
        parts = [done[task.config] if task.config in done else trainer.run_one(task) for task in tasks]
        # Members that were not present for longest are unloaded first.
        while len(self._loaded) > max(MAX_MODELS, len(present)) or self._loaded_bytes() > MAX_STATE_BYTES:
            oldest = next(iter(self._loaded))
            if oldest in present:
                break
            self._unload(oldest)
        # Each member gets an equal part of the time, one after the other.
        each = (time.time() - start) / len(parts)
        return [replace(part, start=start + k * each, end=start + (k + 1) * each) for k, part in enumerate(parts)]

    def _load(self, task: Task, costs: UnitCosts) -> _LoadedMember:
        """The member of a task with its state; a loaded member is kept if it has that state already."""
        loaded = self._loaded.pop(task.config, None)
        if loaded is not None and (loaded.state is None or loaded.state != task.state_in):
            self._pack.free(loaded.member)
            loaded = None
        if loaded is None:
            loaded = self._add_to_pack(task, self._trainer.load_model(task, costs))
        self._loaded[task.config] = loaded
        loaded.seed = unit_seed(self._trainer.setup.seed, task.values, task.epoch, task.partition)
        loaded.member.start_again(loaded.seed)
        return loaded

    def _add_to_pack(self, task: Task, cached: CachedModel) -> _LoadedMember:
        def order(rows: int, epoch: int) -> Sequence[Indices]:
            return batch_order(rows, batch_size(task.values), loaded.seed)

        unsaved = _unsaved(cached)
        loaded = _LoadedMember(cached, self._add(self._pack, cached, task, order), unsaved, None)
        return loaded

    def _add(self, pack: Pack, cached: CachedModel, task: Task, order: Any) -> Member:
        trainee, recipe = cached.trainee, self._trainer.setup.recipe
        loss_fn = bind_optional(recipe.loss_fn, trainee.model, training=True)
        return pack.load(
            trainee.model, trainee.optimizer, loss_fn, batch_size(task.values), config=dict(task.values),
            schedule=trainee.schedules.get("step"), order=order, name=task.config,
        )  # fmt: skip

    def _finish(
        self,
        task: Task,
        present: Mapping[str, _LoadedMember],
        errors: Mapping[str, BaseException],
        costs: UnitCosts,
        rows: int,
    ) -> TaskDone | TaskFailed:
        """The result of a member: its state is published, or it has failed."""
        now, loaded = time.time(), present.get(task.config)
        error = errors[task.config] if loaded is None else loaded.member.error
        if loaded is None or error is not None:
            assert error is not None
            self._unload(task.config)
            return self._trainer.failure(task, now, error)
        framework, trainee = loaded.cached.framework, loaded.cached.trainee
        assert task.state_out is not None
        if task.ends_epoch:
            framework.end_epoch(trainee)
        self._trainer.save_state(framework, trainee, task.state_out, costs)
        loaded.state, loaded.cached.bytes = task.state_out, task.state_out.stat().st_size
        metrics = {"train_loss": loaded.member.mean_loss}
        if _unsaved(loaded.cached) != loaded.initial_unsaved:  # a new model would lack what this one changed
            self._unload(task.config)
        return TaskDone(self._trainer.worker, task, now, now, rows, metrics, **vars(costs))

    def _take_notes(self) -> tuple[str, ...]:
        """The notes of members since the last task; members of one stack have the same."""
        new = {note: member.name for member in self._pack.members for note in member.notes if note not in self._noted}
        self._noted |= new.keys()
        return tuple(f"{name}: {note}" for note, name in new.items())

    def _loaded_bytes(self) -> int:
        return sum(loaded.cached.bytes for loaded in self._loaded.values())

    def _unload(self, config: str) -> None:
        loaded = self._loaded.pop(config, None)
        if loaded is not None:
            self._pack.free(loaded.member)

    def _reset(self) -> None:
        self._pack = self._new_pack()
        self._loaded.clear()

    def _new_pack(self) -> Pack:
        from regatta.pack import Pack

        return Pack(self._trainer.device, rates=self._rates)


def _unsaved(cached: CachedModel) -> object:
    """Everything that a model holds outside its state."""
    return unsaved_state(cached.trainee.model), cached.framework.unsaved_values(cached.trainee)


def _changed(loaded: _LoadedMember, before: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> bool:
    """Whether tensors have other values now, or are elsewhere in memory."""
    from regatta.pack.state.member_state import same_bits

    now = loaded.tensors()
    if [tensor.data_ptr() for tensor in now] != [tensor.data_ptr() for tensor in before]:
        return True
    return not all(map(same_bits, now, values))


def _step_seconds(pack: Pack, data: Any) -> float:
    """Seconds of a step, without the fixed cost of a call to `train`."""
    few, many = TIMED_STEPS[_train_seconds(pack, data, 4) / 4 > LONG_STEP_S]
    short, long = (fmean(_train_seconds(pack, data, steps) for _ in range(2)) for steps in (few, many))
    return max((long - short) / (many - few), long / many / 2)


def _train_seconds(pack: Pack, data: Any, steps: int) -> float:
    for member in pack.members:
        member.start_again(0)  # one that has diverged takes steps as well
    start = time.perf_counter()
    pack.train(data, steps=steps)
    _synchronize(pack)
    return time.perf_counter() - start


def _synchronize(pack: Pack) -> None:
    if pack.graphs is not None:
        pack.graphs.synchronize()
