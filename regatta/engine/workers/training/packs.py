"""Several models of one task side by side: what a worker does with a pack.

Members stay seated from unit to unit as long as the next unit begins with the state that they have; another state, or
another member, is seated anew. What cannot be trained side by side is trained in turn, to the same bits.
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

from regatta.configuration import Scalar, unit_seed
from regatta.data import batch_order
from regatta.engine.messages import (
    PackDone,
    PackProfile,
    Recipe,
    Task,
    TaskDone,
    TaskFailed,
)
from regatta.engine.workers.training.model_cache import MOST, MOST_BYTES, CachedModel
from regatta.engine.workers.training.unsaved_state import unsaved_state
from regatta.errors import DiskError
from regatta.frameworks.base import Indices, bind_optional
from regatta.plan.strategy.form_packs import ANY_CUDA_BUILD

if TYPE_CHECKING:
    import torch

    from regatta.engine.workers.training.trainer import Costs, Trainer
    from regatta.pack import Member, Pack

WARM_STEPS = 24  # of a pilot: a pack tries out on the first ones how to train its members
PIECES = ((8, 40), (4, 20))  # steps that are timed: what a call costs besides is in both; fewer where they are long
LONG_STEP = 2e-3  # seconds
FEW = 4  # members of one build whose steps alone tell of all
ALONE_STEPS = 24


def build_of(cached: CachedModel, recipe: Recipe, values: Mapping[str, Scalar], device: str) -> str:
    """Equal for models that are worth trying as a pack; "" for those that cannot be in one.

    On a GPU any models go together; elsewhere those of one architecture, batch size and kind of optimizer.
    """
    trainee = cached.trainee
    if cached.framework.NAME != "torch" or recipe.loss_fn is None or recipe.train_fn or trainee.optimizer is None:
        return ""
    if device.startswith("cuda"):
        return ANY_CUDA_BUILD
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in trainee.model.named_parameters()]
    optimizer, schedules = type(trainee.optimizer).__qualname__, sorted(trainee.schedules)
    parts = (repr(trainee.model), shapes, optimizer, schedules, values.get("batch_size"))
    return blake3(repr(parts).encode()).hexdigest(length=8)


@dataclass
class _LoadedMember:
    """A member with its trainee, and the file that holds the state it has now."""

    cached: CachedModel
    member: Member
    aside: object  # what it had beside its state when it was new
    state: Path | None
    seed: int = 0

    def tensors(self) -> list[torch.Tensor]:
        """As they are now, in the very memory that a stack trains in."""
        model = self.cached.trainee.model
        return [tensor.data for tensor in (*model.parameters(), *model.buffers())]


class PackTrainer:
    """The packs of one worker."""

    def __init__(self, trainer: Trainer) -> None:
        from regatta.pack import Rates

        self._trainer = trainer
        self._rates = Rates()
        self._reset()

    def run(self, task: Task) -> PackDone | TaskFailed:
        """Do a task for all its members; what one raises is that one's failure."""
        start = time.time()
        tasks = (replace(task, packed_with=()), *task.packed_with)
        try:
            parts = self._train(tasks) if task.kind == "train" else [self._judge(each) for each in tasks]
        except (KeyboardInterrupt, DiskError) as error:
            self._reset()
            if isinstance(error, KeyboardInterrupt):
                raise
            return self._trainer.failure(task, start, error)
        except BaseException:  # noqa: BLE001 (the pack itself: its members are as well trained in turn)
            traceback.print_exc()
            self._reset()
            parts = [self._trainer.run_one(each) for each in tasks]
        full = next((part for part in parts if isinstance(part, TaskFailed) and part.disk), None)
        if full is not None:
            return replace(full, task=task)
        return PackDone(self._trainer.worker, task, start, time.time(), tuple(parts))

    def pilot(self, task: Task) -> PackProfile:
        """How much faster some new models are side by side than one after another."""
        tasks = (replace(task, packed_with=()), *task.packed_with)
        trainer, pack = self._trainer, self._pack_of_its_own()
        benches = [trainer.build(each.values) for each in tasks]
        data = trainer.partition("train", task.partition, benches[0].framework, task=task)
        build = build_of(benches[0], trainer.setup.recipe, task.values, trainer.device)
        timed = tasks if build == ANY_CUDA_BUILD else tasks[:FEW]
        alone = fmean(self._alone(trainer.build(each.values), data, each) for each in timed) * len(tasks)
        self._fill(pack, benches, tasks, data)
        together = _step(pack, data)
        failed = next((member.error for member in pack.members if member.error is not None), None)
        if failed is not None:
            return PackProfile(build, len(tasks), 1.0, f"a member fails: {failed}")
        benches = [trainer.build(each.values) for each in tasks]
        start = time.perf_counter()
        self._fill(self._pack_of_its_own(), benches, tasks, data)  # as the next unit will find them
        fixed = max(0.0, time.perf_counter() - start - WARM_STEPS * together) / len(tasks)
        return PackProfile(build, len(tasks), alone / together, pack.plan()[0].reason, fixed)

    def _fill(self, pack: Pack, benches: Sequence[CachedModel], tasks: Sequence[Task], data: Any) -> None:
        for cached, each in zip(benches, tasks, strict=True):
            self._load(pack, cached, each, partial(_plain_order, _size(each)))
        pack.train(data, steps=WARM_STEPS)
        _wait(pack)

    def _judge(self, task: Task) -> TaskDone | TaskFailed:
        """Judge a member: as it sits here, if it has the state in question."""
        seat = self._seats.get(task.config)
        if seat is None or seat.state is None or seat.state != task.state_in:
            return self._trainer.run_one(task)
        before, values, aside = seat.tensors(), [tensor.clone() for tensor in seat.tensors()], _aside(seat.cached)
        judged = self._trainer.run_one(task, seat.cached)
        if _changed(seat, before, values) or _aside(seat.cached) != aside:  # an eval_fn may do with it as it likes
            self._unseat(task.config)
        return judged

    def _alone(self, cached: CachedModel, data: Any, task: Task) -> float:
        """Seconds of a step by itself."""
        from regatta.engine.workers.training.profiler import paced

        framework, loss_fn, values = cached.framework, self._trainer.setup.recipe.loss_fn, dict(task.values)
        order = batch_order(framework.rows(data), _size(task), 0)
        do = partial(framework.train, cached.trainee, data, loss_fn=loss_fn, config=values)
        return paced(do, order, most=ALONE_STEPS).each

    def _train(self, tasks: Sequence[Task]) -> list[TaskDone | TaskFailed]:
        from regatta.engine.workers.training.trainer import Costs

        trainer, start = self._trainer, time.time()
        costs = {task.config: Costs() for task in tasks}
        errors: dict[str, BaseException] = {}
        with trainer.keep_settings():
            seats = {}
            for task in tasks:
                try:
                    seats[task.config] = self._take_seat(task, costs[task.config])
                except (KeyboardInterrupt, DiskError):
                    raise
                except BaseException as error:  # noqa: BLE001 (the user's code may raise anything)
                    errors[task.config] = error
            if seats:
                some = next(iter(seats.values()))
                whole = replace(tasks[0], packed_with=tuple(tasks[1:]))
                data = trainer.partition("train", whole.partition, some.cached.framework, costs[tasks[0].config], whole)
                self._pack.train(data, epochs={seat.member: 1 for seat in seats.values()})
                rows = some.cached.framework.rows(data)
            parts = [self._leave(task, seats, errors, costs[task.config], rows if seats else 0) for task in tasks]
        self._make_room(seats)
        return _shared_out(parts, start, time.time())

    def _take_seat(self, task: Task, costs: Costs) -> _LoadedMember:
        """The member of a task, with its state; it stays where it was if it has that state already."""
        seat = self._seats.pop(task.config, None)
        if seat is not None and (seat.state is None or seat.state != task.state_in):
            self._pack.free(seat.member)
            seat = None
        if seat is None:
            cached = self._trainer.fetch(task, costs)
            seat = self._seat(task, cached)
        self._seats[task.config] = seat
        seat.seed = unit_seed(self._trainer.setup.seed, task.values, task.epoch, task.partition)
        seat.member.start_again(seat.seed)
        return seat

    def _seat(self, task: Task, cached: CachedModel) -> _LoadedMember:
        def order(rows: int, epoch: int) -> Sequence[Indices]:
            return batch_order(rows, _size(task), seat.seed)

        aside = _aside(cached)
        seat = _LoadedMember(cached, self._load(self._pack, cached, task, order), aside, None)
        return seat

    def _load(self, pack: Pack, cached: CachedModel, task: Task, order: Any) -> Member:
        trainee, recipe = cached.trainee, self._trainer.setup.recipe
        loss_fn = bind_optional(recipe.loss_fn, trainee.model, training=True)
        return pack.load(
            trainee.model, trainee.optimizer, loss_fn, _size(task), config=dict(task.values),
            schedule=trainee.schedules.get("step"), order=order, name=task.config,
        )  # fmt: skip

    def _leave(
        self,
        task: Task,
        seats: Mapping[str, _LoadedMember],
        errors: Mapping[str, BaseException],
        costs: Costs,
        rows: int,
    ) -> TaskDone | TaskFailed:
        """What became of a member: its state is published, or it has failed."""
        now, seat = time.time(), seats.get(task.config)
        error = errors[task.config] if seat is None else seat.member.error
        if seat is None or error is not None:
            assert error is not None
            self._unseat(task.config)
            return self._trainer.failure(task, now, error)
        framework, trainee = seat.cached.framework, seat.cached.trainee
        assert task.state_out is not None
        if task.ends_epoch:
            framework.end_epoch(trainee)
        self._trainer.leave(framework, trainee, task.state_out, costs)
        seat.state, seat.cached.bytes = task.state_out, task.state_out.stat().st_size
        metrics = {"train_loss": seat.member.mean_loss}
        if _aside(seat.cached) != seat.aside:  # a new one would not have what it changed
            self._unseat(task.config)
        return TaskDone(self._trainer.worker, task, now, now, rows, metrics, **vars(costs))

    def _make_room(self, present: Mapping[str, _LoadedMember]) -> None:
        """Those that were not here for longest go first."""
        while len(self._seats) > max(MOST, len(present)) or self._bytes() > MOST_BYTES:
            if next(iter(self._seats)) in present:
                return
            self._unseat(next(iter(self._seats)))

    def _bytes(self) -> int:
        return sum(seat.cached.bytes for seat in self._seats.values())

    def _unseat(self, config: str) -> None:
        seat = self._seats.pop(config, None)
        if seat is not None:
            self._pack.free(seat.member)

    def _reset(self) -> None:
        self._pack = self._pack_of_its_own()
        self._seats: OrderedDict[str, _LoadedMember] = OrderedDict()

    def _pack_of_its_own(self) -> Pack:
        from regatta.pack import Pack

        return Pack(self._trainer.device, rates=self._rates)


def _size(task: Task) -> int:
    from regatta.engine.workers.training.trainer import batch_size

    return batch_size(task.values)


def _plain_order(size: int, rows: int, epoch: int) -> Sequence[Indices]:
    return batch_order(rows, size, epoch)


def _aside(cached: CachedModel) -> object:
    """All that no state holds of a trainee."""
    return unsaved_state(cached.trainee.model), cached.framework.unsaved_values(cached.trainee)


def _changed(seat: _LoadedMember, before: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> bool:
    """Whether tensors have other values now, or lie elsewhere."""
    from regatta.pack.member_state import same_bits

    now = seat.tensors()
    if [tensor.data_ptr() for tensor in now] != [tensor.data_ptr() for tensor in before]:
        return True
    return not all(map(same_bits, now, values))


def _step(pack: Pack, data: Any) -> float:
    """Seconds of a step, without what a call to train costs however many it takes."""
    few, many = PIECES[_seconds(pack, data, 4) / 4 > LONG_STEP]
    short, long = (fmean(_seconds(pack, data, steps) for _ in range(2)) for steps in (few, many))
    return max((long - short) / (many - few), long / many / 2)


def _seconds(pack: Pack, data: Any, steps: int) -> float:
    start = time.perf_counter()
    pack.train(data, steps=steps)
    _wait(pack)
    return time.perf_counter() - start


def _wait(pack: Pack) -> None:
    if pack.graphs is not None:
        pack.graphs.synchronize()


def _shared_out(parts: Sequence[TaskDone | TaskFailed], start: float, end: float) -> list[TaskDone | TaskFailed]:
    """Each member with its share of the time, one after the other."""
    share = (end - start) / len(parts)
    return [
        replace(part, start=start + number * share, end=start + (number + 1) * share)
        for number, part in enumerate(parts)
    ]
