"""What a worker does with a task: read its data once, fetch the state, train or evaluate, leave the new state.

A model is built anew for each unit and given its state from the file: what a unit computes then depends on nothing
that the worker did before.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regatta.configuration import Scalar, derive_seed, initial_seed, unit_seed
from regatta.data import batch_order
from regatta.engine.messages import (
    ModelProfile,
    PackDone,
    PackProfile,
    Task,
    TaskDone,
    TaskFailed,
    WorkerSetup,
)
from regatta.engine.workers.training.device_memory import device_memory
from regatta.engine.workers.training.error_report import headline, users_traceback
from regatta.engine.workers.training.group_member import GroupMember, seed_of
from regatta.engine.workers.training.model_cache import CachedModel, ModelCache
from regatta.engine.workers.training.packs import PackTrainer
from regatta.engine.workers.training.partition_cache import PartitionCache
from regatta.engine.workers.training.profiler import ROWS, SAMPLE, ModelProfiler
from regatta.engine.workers.training.warm_start import warm_start
from regatta.errors import DiskError, RegattaError, UsageError
from regatta.frameworks import (
    Framework,
    framework_of,
    keep_settings_in_all,
    load_framework,
    loaded_frameworks,
    seeded_in_all,
    threads,
)
from regatta.frameworks.base import Indices
from regatta.frameworks.torch.group import PeerFailedError
from regatta.store.states.state_files import (
    publish,
    state_framework,
    temporary,
    writing,
)


@dataclass
class Costs:
    """Seconds and bytes of a task that are not its work proper."""

    hop_bytes: int = 0
    hop_seconds: float = 0.0
    load_seconds: float = 0.0
    save_seconds: float = 0.0
    sync_seconds: float = 0.0


@dataclass
class _TaskResult:
    rows: int
    metrics: dict[str, float]
    costs: Costs
    profile: ModelProfile | None = None
    pack_profile: PackProfile | None = None


@dataclass
class Trainer:
    """The body of a worker."""

    worker: str
    setup: WorkerSetup
    device: str = "cpu"
    model_cache: ModelCache = field(default_factory=ModelCache)
    _ahead: tuple[Path, Any] | None = None
    _ahead_lock: threading.Lock = field(default_factory=threading.Lock)

    @functools.cached_property
    def partition_cache(self) -> PartitionCache:
        return PartitionCache(self.setup, self.device)

    @functools.cached_property
    def packs(self) -> PackTrainer:
        return PackTrainer(self)

    @functools.cached_property
    def pilots(self) -> ModelProfiler:
        return ModelProfiler(self)

    @functools.cached_property
    def group_member(self) -> GroupMember:
        return GroupMember(self)

    def run(self, task: Task) -> TaskDone | TaskFailed | PackDone:
        """Do a task; whatever the user's functions raise is the configuration's failure."""
        return self.packs.run(task) if task.packed_with and task.kind != "pilot" else self.run_one(task)

    def run_one(self, task: Task, at_hand: CachedModel | None = None) -> TaskDone | TaskFailed:
        """Do a task of one configuration; a model to judge may be at hand, with its state."""
        start = time.time()
        try:
            with self.keep_settings():
                if at_hand is not None:
                    result = self._evaluate_at_hand(task, at_hand, Costs())
                else:
                    result = {"train": self._train, "eval": self._evaluate, "pilot": self._pilot}[task.kind](task)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 (the user's code may raise anything)
            return self.failure(task, start, error)
        done = TaskDone(self.worker, task, start, time.time(), result.rows, result.metrics, **vars(result.costs))
        return replace(done, profile=result.profile, pack_profile=result.pack_profile)

    def failure(self, task: Task, start: float, error: BaseException) -> TaskFailed:
        full = isinstance(error, DiskError)
        told = str(error) if full else users_traceback(error)
        echo = isinstance(error, PeerFailedError)
        return TaskFailed(self.worker, task, start, time.time(), headline(error), told, disk=full, echo=echo)

    def prefetch(self, path: Path) -> None:
        """Read a state that will probably be asked for; called beside a running task."""
        try:
            state = load_framework(state_framework(path)).read(path)
        except RegattaError:
            return  # the task itself will say what is wrong with it
        with self._ahead_lock:
            self._ahead = path, state

    def _train(self, task: Task) -> _TaskResult:
        recipe, values, costs = self.setup.recipe, task.values, Costs()
        cached, data = self.set_up("train", task.partition, task, costs)
        framework, trainee = cached.framework, cached.trainee
        rows = framework.rows(data)
        seed = unit_seed(self.setup.seed, values, task.epoch, task.partition)
        with framework.seeded(seed_of(task.group_rank, seed)):
            if recipe.train_fn is None:
                batches = batch_order(rows, batch_size(values), seed)
                with self.group_member.timed(task, costs):
                    found = self.doing("train", framework, task)(trainee, data, batches, recipe.loss_fn, dict(values))
            else:
                found = self.train_opaque(cached, data, task)
            if task.ends_epoch:
                framework.end_epoch(trainee)
        if task.state_out is not None:  # one of a group leaves it for all
            self.leave(framework, trainee, task.state_out, costs)
            cached.bytes = task.state_out.stat().st_size
        self.model_cache.put(task.config, cached)
        return _TaskResult(rows, {train_name(name): value for name, value in found.items()}, costs)

    def train_opaque(self, cached: CachedModel, data: Any, task: Task) -> dict[str, float]:
        """Have the user's train_fn train."""
        train_fn, framework = self.setup.recipe.train_fn, cached.framework
        assert train_fn is not None
        with self._shared(framework, data):
            return _metrics(
                train_fn(data, *framework.train_fn_arguments(cached.trainee), dict(task.values)), "train_fn"
            )

    def set_up(self, kind: Literal["train", "eval"], index: int, task: Task, costs: Costs) -> tuple[CachedModel, Any]:
        """The model of a task and its data; in a group, all have them, or all fail."""
        with self.group_member.agreeing(task) as prepared:
            cached = self.fetch(task, costs)
            data = self.partition(kind, index, cached.framework, costs, task)
            prepared(cached, data)
        return cached, data

    def doing(self, what: Literal["train", "evaluate"], framework: Framework, task: Task) -> Callable[..., Any]:
        """How the framework trains or evaluates, by this worker or by its group."""
        alone: Callable[..., Any] = getattr(framework, what)
        return alone if task.group_rank is None else self.group_member.doing(what, task.group_rank)

    def _evaluate(self, task: Task) -> _TaskResult:
        costs = Costs()
        cached, data = self.set_up("eval", task.partition, task, costs)
        with self.group_member.timed(task, costs):
            found = self._judge(cached, data, task)
        self.model_cache.put(task.config, cached)
        return _TaskResult(cached.framework.rows(data), found, costs)

    def _evaluate_at_hand(self, task: Task, cached: CachedModel, costs: Costs) -> _TaskResult:
        data = self.partition("eval", task.partition, cached.framework, costs)
        found = self._judge(cached, data, task)
        return _TaskResult(cached.framework.rows(data), found, costs)

    def _judge(self, cached: CachedModel, data: Any, task: Task) -> dict[str, float]:
        """The metrics of a model on evaluation data."""
        recipe, values, metrics = self.setup.recipe, task.values, dict[str, float]()
        with cached.framework.seeded(derive_seed(self.setup.seed, "eval")):
            if recipe.train_fn is None:
                order = in_order(cached.framework.rows(data), batch_size(values))
                judge = self.doing("evaluate", cached.framework, task)
                metrics |= judge(cached.trainee, data, order, recipe.loss_fn, dict(values))
            return metrics | self.judged_by_user(cached, data, task)

    def judged_by_user(self, cached: CachedModel, data: Any, task: Task) -> dict[str, float]:
        """What eval_fn says, if there is one; the first of a group asks it for all."""
        eval_fn, framework = self.setup.recipe.eval_fn, cached.framework
        if eval_fn is None or (task.group_rank is not None and task.group_rank.rank != 0):
            return {}
        with self._shared(framework, data), framework.evaluating(cached.trainee):
            return _metrics(eval_fn(data, cached.trainee.model, dict(task.values)), "eval_fn")

    def fetch(self, task: Task, costs: Costs) -> CachedModel:
        """The model of a task with its state."""
        kept = self.model_cache.take(task.config)
        if task.state_in is None:
            return self._begin(self.build(task.values), kept)
        cached = kept if kept and task.parent is None else self.build(task.values)
        start = time.perf_counter()
        if task.parent is None:
            cached.framework.restore(cached.trainee, self._read(cached.framework, task.state_in))
        else:
            warm_start(cached.framework, self.build(task.parent).trainee, cached.trainee, task.state_in)
        costs.hop_seconds = time.perf_counter() - start
        costs.hop_bytes = cached.bytes = task.state_in.stat().st_size
        return cached

    def _begin(self, new: CachedModel, kept: CachedModel | None) -> CachedModel:
        """A new model; its initial state goes into a trainee that was kept, if there is one, for it is compiled."""
        if kept is None:
            return new
        with self.scratch() as path:
            new.framework.save(new.trainee, path)
            kept.framework.restore(kept.trainee, kept.framework.read(path))
        return kept

    def build(self, values: Mapping[str, Scalar]) -> CachedModel:
        before = loaded_frameworks()
        built = self._build_once(values)
        if loaded_frameworks() != before:  # it brought its framework along, whose random numbers were not seeded yet
            built = self._build_once(values)
        name = self.setup.recipe.framework
        framework = framework_of(built) if name == "auto" else load_framework(name)
        trainee = framework.assemble(built, self.device)
        return CachedModel(framework, trainee, framework.unsaved_values(trainee) if framework.COMPILES else {})

    def _build_once(self, values: Mapping[str, Scalar]) -> Any:
        name, seed = self.setup.recipe.framework, initial_seed(self.setup.seed, values)
        with seeded_in_all(seed) if name == "auto" else load_framework(name).seeded(seed):
            return self.setup.recipe.model_fn(dict(values))

    def keep_settings(self) -> contextlib.AbstractContextManager[None]:
        name = self.setup.recipe.framework
        return keep_settings_in_all() if name == "auto" else load_framework(name).keep_settings()

    def _read(self, framework: Framework, path: Path) -> Any:
        with self._ahead_lock:
            ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] == path else framework.read(path)

    def leave(self, framework: Framework, trainee: Any, path: Path, costs: Costs) -> None:
        start = time.perf_counter()
        with writing(path):
            written = temporary(path)
            framework.save(trainee, written)
            publish(written, path)
        costs.save_seconds = time.perf_counter() - start

    def partition(
        self,
        kind: Literal["train", "eval"],
        index: int,
        framework: Framework,
        costs: Costs | None = None,
        task: Task | None = None,
    ) -> Any:
        """The data of a partition; what a task trains on is as it is in its epoch, of a pilot only the first rows."""
        if task is None:
            return self.partition_cache.partition(kind, index, framework, costs)
        if task.kind == "pilot" and self.setup.recipe.transform_fn is not None:
            opaque = self.setup.recipe.train_fn is not None
            most = SAMPLE * (ROWS if opaque else batch_size(task.values))
            return self.partition_cache.sample(index, framework, most, costs)
        models = (task.config, *(mate.config for mate in task.packed_with))
        return self.partition_cache.partition(kind, index, framework, costs, task.epoch, models)

    @contextlib.contextmanager
    def _shared(self, framework: Framework, data: Any) -> Iterator[None]:
        """A scope in which the user's functions hold data that others will see; if they change it, it is read again."""
        try:
            with framework.check_unmodified(data):
                yield
        except UsageError:
            self.partition_cache.forget()
            raise

    def _pilot(self, task: Task) -> _TaskResult:
        """Measure a few batches of a new model, or of several side by side; nothing of it is kept but the data."""
        costs = Costs()
        if task.packed_with:
            return _TaskResult(0, {}, costs, pack_profile=self.packs.pilot(task))
        return _TaskResult(0, {}, costs, self.pilots.run(task, costs))

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A file for a state that nobody keeps."""
        self.setup.logs.mkdir(parents=True, exist_ok=True)
        with writing(self.setup.logs), tempfile.TemporaryDirectory(dir=self.setup.logs) as folder:
            yield Path(folder) / "scratch.safetensors"


def in_order(rows: int, batch_size: int) -> list[Indices]:
    """All rows in batches, as they stand."""
    return [np.arange(start, min(start + batch_size, rows)) for start in range(0, rows, batch_size)]


def batch_size(values: Mapping[str, Scalar]) -> int:
    size = values.get("batch_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise UsageError(f"batch_size is {size!r}; it is a whole number from 1.")
    return size


def _metrics(found: object, function: str) -> dict[str, float]:
    if found is None and function == "train_fn":
        return {}
    if not isinstance(found, Mapping):
        raise UsageError(f"{function} returned {type(found).__name__}; it returns a dict of numbers.")
    try:
        return {str(name): float(value) for name, value in found.items()}
    except (TypeError, ValueError) as error:
        raise UsageError(f"{function} returned {found!r}; every value must be one number.") from error


def train_name(name: str) -> str:
    return name if name.startswith("train_") else f"train_{name}"


def choose_device(wanted: str, index: int) -> str:
    """The device of the worker of that index; "auto" shares the GPUs out in turn, or takes the CPU."""
    if wanted != "auto":
        return wanted
    if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))):
        return "cpu"  # without the second that it takes to import PyTorch and ask
    import torch

    return f"cuda:{index % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"


def memory_of(device: str, wanted: str, workers: int) -> int:
    """Bytes of a worker's device, shared out among those of so many workers that have the same."""
    sharers = [choose_device(wanted, index) for index in range(workers)].count(device)
    return device_memory(device, sharers)


def thread_count() -> int:
    return threads.count()


def limit_threads(number: int) -> None:
    threads.limit(number)
    threads.settle()


def warm_up() -> None:
    """Take one step of nothing: a first optimizer imports a second's worth of PyTorch, which no model should pay."""
    if "torch" not in sys.modules:
        return  # the user's functions did not bring it: whoever needs it imports it
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    optimizer.step()
