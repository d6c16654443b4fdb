"""What a worker does with a task: load the data and the model's state, train or evaluate, save the new state.

A model is built for each unit and restored from its state file. So the result of a unit does not depend on what the
worker did before.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from regatta.cluster import GPU_FILES
from regatta.configuration import Scalar
from regatta.data import batch_order
from regatta.engine.messages import PackDone, Task, TaskDone, TaskFailed, WorkerSetup
from regatta.engine.sharing.ledger import BlockKey
from regatta.engine.workers.training.device_memory import device_memory
from regatta.engine.workers.training.error_report import advice, cause_of, headline, users_traceback
from regatta.engine.workers.training.group_member import GroupMember, member_seed
from regatta.engine.workers.training.model_cache import CachedModel, ModelCache
from regatta.engine.workers.training.packs import PackTrainer
from regatta.engine.workers.training.partition_cache import PartitionCache
from regatta.engine.workers.training.profiler import OPAQUE_ROWS, SAMPLE_BATCHES, ModelProfiler
from regatta.engine.workers.training.unit import UnitCosts, batch_size, batches_in_order, to_metrics, train_metric
from regatta.engine.workers.training.warm_start import warm_start
from regatta.errors import DiskError, RegattaError, UsageError
from regatta.frameworks import framework_of, load_framework, loaded_frameworks, seeded_in_all, settings_of
from regatta.frameworks.base import Framework, arguments
from regatta.frameworks.settings import KeptSettings
from regatta.frameworks.torch import group
from regatta.seeds import derive_seed, initial_seed, unit_seed
from regatta.store.states.state_files import publishing, state_framework, writing

Results: TypeAlias = dict[str, Any]  # fields of `TaskDone`
SCHEDULE_STANDS_STILL = (
    'train_fn does not advance the schedule of {"step": schedule}, so the learning rate keeps its first value. Give '
    "train_fn an argument `schedule` and call schedule.step() after each optimizer.step()."
)


@dataclass
class Trainer:
    """Runs the tasks of one worker."""

    worker: str
    setup: WorkerSetup
    device: str = "cpu"
    on_begin: Callable[[], None] = lambda: None  # called when a unit has its data, before its model is built
    model_cache: ModelCache = field(default_factory=ModelCache)
    settings: KeptSettings = field(default_factory=KeptSettings)  # of the process before the first unit
    _frameworks: dict[str, Framework] = field(default_factory=dict)  # that models were built with
    _import_seconds: float = 0.0  # that model_fn has spent on importing frameworks
    _prefetched: tuple[Path, Any] | None = None
    _prefetch_lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.partition_cache = PartitionCache(self.setup, self.device)
        self.profiler = ModelProfiler(self)
        self.group_member = GroupMember(self)

    @functools.cached_property
    def pack_trainer(self) -> PackTrainer:
        return PackTrainer(self)

    def run(self, task: Task) -> TaskDone | TaskFailed | PackDone:
        """Run a task; an exception of the user's functions is a failure of the configuration."""
        is_pack = bool(task.packed_with) and task.kind != "pilot"
        return self.pack_trainer.run(task) if is_pack else self.run_one(task)

    def run_one(self, task: Task, loaded: CachedModel | None = None) -> TaskDone | TaskFailed:
        """Run a task of one configuration; a model to evaluate may be loaded already, with its state."""
        start, imports = time.time(), self._import_seconds
        try:
            with self.keep_settings():
                if task.kind == "eval":
                    results = self._evaluate(task, loaded)
                else:
                    results = self._train(task) if task.kind == "train" else self._profile(task)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 (the user's code may raise anything)
            return self.failure(task, start, error)
        return TaskDone(self.worker, task, start + self._import_seconds - imports, time.time(), **results)

    def failure(self, task: Task, start: float, error: BaseException) -> TaskFailed:
        disk_full = isinstance(error, DiskError)
        details = str(error) if disk_full else users_traceback(error)
        if remedy := advice(error, task.values):
            details = f"{details.rstrip()}\n{remedy}"
        echo = isinstance(error, group.PeerFailedError)
        return TaskFailed(
            self.worker, task, start, time.time(), headline(error), details, disk_full, echo, cause_of(error)
        )

    def prefetch(self, path: Path) -> None:
        """Read a state that the next task will probably need; called from another thread while a task runs.

        That thread must not import a framework: the task may be importing the same one, and would get half of it.
        """
        try:
            framework = self._frameworks.get(state_framework(path))
            if framework is None:
                return
            state = framework.read(path)
        except RegattaError:
            return  # the task itself will report what is wrong with it
        with self._prefetch_lock:
            self._prefetched = path, state

    # -- training and evaluation -----------------------------------------------------------------------

    def _train(self, task: Task) -> Results:
        recipe, values, costs = self.setup.recipe, task.values, UnitCosts()
        cached, data = self.prepare(task, costs)
        framework, trainee = cached.framework, cached.trainee
        rows = framework.rows(data)
        seed = unit_seed(self.setup.seed, values, task.epoch, task.partition)
        warnings: tuple[str, ...] = ()
        with framework.seeded(member_seed(task.group_rank, seed)):
            if recipe.train_fn is None:
                batches = batch_order(rows, batch_size(values), seed)
                with self.group_member.count_exchanges(task, costs):
                    train = self.function("train", framework, task)
                    metrics = train(trainee, data, batches, recipe.loss_fn, dict(values))
            else:
                position = framework.schedule_position(trainee)
                metrics = self.run_train_fn(cached, data, task)
                if position is not None and framework.schedule_position(trainee) == position:
                    warnings = (SCHEDULE_STANDS_STILL,)
            if task.ends_epoch:
                framework.end_epoch(trainee)
        if task.state_out is not None:  # in a group, only the first member saves the state
            self.save_state(framework, trainee, task.state_out, costs)
            cached.bytes = task.state_out.stat().st_size
        self.model_cache.put(task.config, cached)
        metrics = {train_metric(name): value for name, value in metrics.items()}
        return {"rows": rows, "metrics": metrics, "warnings": warnings, **vars(costs)}

    def run_train_fn(self, cached: CachedModel, data: Any, task: Task) -> dict[str, float]:
        train_fn = self.setup.recipe.train_fn
        assert train_fn is not None
        with self._check_unmodified(cached.framework, data):
            model, optimizer, schedule = cached.framework.train_fn_arguments(cached.trainee)
            offered = {"schedule": schedule}
            wanted = {name: value for name, value in offered.items() if name in arguments(train_fn)}
            return to_metrics(train_fn(data, model, optimizer, dict(task.values), **wanted), "train_fn")

    def prepare(self, task: Task, costs: UnitCosts) -> tuple[CachedModel, Any]:
        """The model of a task and its data; in a group, all members get them or all fail."""
        with self.group_member.agree_on_model(task) as on_prepared:
            if task.kind != "pilot":
                self.begin(task, costs)
            cached = self.load_model(task, costs)
            data = self.partition(task, cached.framework, costs)
            on_prepared(cached, data)
        return cached, data

    def begin(self, task: Task, costs: UnitCosts) -> None:
        """Read the data of a unit, and say that it begins: from here on, its model is to blame for what happens."""
        with self.settings.restored():
            self.partition_cache.read_ahead(self._key(task), costs, _models(task))
        self.on_begin()

    def function(self, name: Literal["train", "evaluate"], framework: Framework, task: Task) -> Callable[..., Any]:
        """The function that trains or evaluates, for this worker alone or in its group."""
        function: Callable[..., Any] = getattr(framework if task.group_rank is None else group, name)
        if task.group_rank is None:
            return function
        return functools.partial(function, group=self.group_member.group(task.group_rank))

    def _evaluate(self, task: Task, loaded: CachedModel | None) -> Results:
        costs = UnitCosts()
        if loaded is not None:
            self.begin(task, costs)
            cached, data = loaded, self.partition(task, loaded.framework, costs)
        else:
            cached, data = self.prepare(task, costs)
        with self.group_member.count_exchanges(task, costs):
            metrics = self._metrics(cached, data, task)
        if loaded is None:
            self.model_cache.put(task.config, cached)
        return {"rows": cached.framework.rows(data), "metrics": metrics, **vars(costs)}

    def _metrics(self, cached: CachedModel, data: Any, task: Task) -> dict[str, float]:
        recipe, framework, metrics = self.setup.recipe, cached.framework, dict[str, float]()
        with framework.seeded(derive_seed(self.setup.seed, "eval")):
            if recipe.train_fn is None:
                batches = batches_in_order(framework.rows(data), batch_size(task.values))
                evaluate = self.function("evaluate", framework, task)
                metrics |= evaluate(cached.trainee, data, batches, recipe.loss_fn, dict(task.values))
            return metrics | self.run_eval_fn(cached, data, task)

    def run_eval_fn(self, cached: CachedModel, data: Any, task: Task) -> dict[str, float]:
        """The metrics of eval_fn, if there is one; the first member of a group calls it for all."""
        eval_fn, framework = self.setup.recipe.eval_fn, cached.framework
        if eval_fn is None or (task.group_rank is not None and task.group_rank.rank != 0):
            return {}
        with self._check_unmodified(framework, data), framework.evaluating(cached.trainee):
            return to_metrics(eval_fn(data, cached.trainee.model, dict(task.values)), "eval_fn")

    def _profile(self, task: Task) -> Results:
        """Measure a few batches of a new model, or of several packed models; only the data is kept."""
        if task.packed_with:
            return {"pack_profile": self.pack_trainer.profile(task)}
        costs = UnitCosts()
        return {"profile": self.profiler.run(task, costs), **vars(costs)}

    # -- models and states -----------------------------------------------------------------------------

    def load_model(self, task: Task, costs: UnitCosts) -> CachedModel:
        cached = self.model_cache.take(task.config)
        if task.state_in is None:
            new = self.build(task.values)
            if cached is None:
                return new
            # The cached model is compiled already: the initial state of the new one goes into it.
            with self.scratch_file() as path:
                new.framework.save(new.trainee, path)
                cached.framework.restore(cached.trainee, cached.framework.read(path))
            return cached
        if cached is None or task.parent is not None:
            cached = self.build(task.values)
        start = time.perf_counter()
        if task.parent is None:
            cached.framework.restore(cached.trainee, self._read_state(cached.framework, task.state_in))
        else:
            with self.settings.restored():  # not with what the child's model_fn left behind, and the reverse
                parent = self.build(task.parent)
            warm_start(cached.framework, parent.trainee, cached.trainee, task.state_in)
        costs.hop_seconds = time.perf_counter() - start
        costs.hop_bytes = cached.bytes = task.state_in.stat().st_size
        return cached

    def build(self, values: Mapping[str, Scalar]) -> CachedModel:
        before, start = loaded_frameworks(), time.perf_counter()
        built = self._call_model_fn(values)
        if loaded_frameworks() != before:  # model_fn imported a framework whose random numbers were not seeded
            self._import_seconds += time.perf_counter() - start
            built = self._call_model_fn(values)
        name = self.setup.recipe.framework
        framework = framework_of(built) if name == "auto" else load_framework(name)
        trainee = framework.assemble(built, self.device)
        self._frameworks[framework.NAME] = framework
        unsaved = framework.unsaved_values(trainee) if framework.COMPILES else {}
        return CachedModel(framework, trainee, unsaved, self.settings.changed())

    def _call_model_fn(self, values: Mapping[str, Scalar]) -> Any:
        name, seed = self.setup.recipe.framework, initial_seed(self.setup.seed, values)
        with seeded_in_all(seed) if name == "auto" else load_framework(name).seeded(seed):
            return self.setup.recipe.model_fn(dict(values))

    @contextlib.contextmanager
    def keep_settings(self) -> Iterator[None]:
        """A scope that begins with the settings of the process from before the first unit, and ends with them."""
        self.settings.add(settings_of(self.setup.recipe.framework))
        # A scope that the last model entered and never left ended when it was deleted, and may have changed settings.
        self.settings.restore()
        try:
            yield
        finally:
            self.settings.restore()

    def _read_state(self, framework: Framework, path: Path) -> Any:
        with self._prefetch_lock:
            prefetched, self._prefetched = self._prefetched, None
        return prefetched[1] if prefetched is not None and prefetched[0] == path else framework.read(path)

    def save_state(self, framework: Framework, trainee: Any, path: Path, costs: UnitCosts) -> None:
        start = time.perf_counter()
        with writing(path), publishing(path) as written:
            framework.save(trainee, written)
        costs.save_seconds = time.perf_counter() - start

    @contextlib.contextmanager
    def scratch_file(self) -> Iterator[Path]:
        """A file for a state that nothing keeps."""
        self.setup.logs.mkdir(parents=True, exist_ok=True)
        with writing(self.setup.logs), tempfile.TemporaryDirectory(dir=self.setup.logs) as folder:
            yield Path(folder) / "scratch.safetensors"

    # -- data --------------------------------------------------------------------------------------------

    def partition(self, task: Task, framework: Framework, costs: UnitCosts) -> Any:
        """The data of a task, transformed for its epoch; for profiling, only the first rows."""
        with self.settings.restored():  # other models will use the same data
            return self._partition(task, framework, costs)

    def _partition(self, task: Task, framework: Framework, costs: UnitCosts) -> Any:
        if task.kind == "pilot" and self.setup.recipe.transform_fn is not None:
            opaque = self.setup.recipe.train_fn is not None
            rows = SAMPLE_BATCHES * (OPAQUE_ROWS if opaque else batch_size(task.values))
            return self.partition_cache.sample(task.partition, framework, rows, costs)
        return self.partition_cache.partition(self._key(task), framework, costs, _models(task))

    def _key(self, task: Task) -> BlockKey:
        transformed = task.kind == "train" and self.setup.recipe.transform_fn is not None
        kind: Literal["train", "eval"] = "eval" if task.kind == "eval" else "train"
        place = self.setup.place(kind, task.values, task.partition)
        return BlockKey(kind, place, task.epoch if transformed else None)

    @contextlib.contextmanager
    def _check_unmodified(self, framework: Framework, data: Any) -> Iterator[None]:
        """A scope for the user's functions, on data that other models will use; changed data is read again."""
        try:
            with framework.check_unmodified(data):
                yield
        except UsageError:
            self.partition_cache.clear()
            raise


def _models(task: Task) -> tuple[str, ...]:
    return (task.config, *(other.config for other in task.packed_with))


def choose_device(wanted: str, index: int) -> str:
    """The device of the worker with that index; "auto" assigns the GPUs in turn, or takes the CPU."""
    if wanted != "auto":
        return wanted
    if not any(map(os.path.exists, GPU_FILES)):
        return "cpu"  # without the second that it takes to import PyTorch and ask
    import torch

    return f"cuda:{index % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"


def memory_of(device: str, wanted: str, workers: int) -> int:
    """Bytes of a worker's device, divided among the workers that share it."""
    sharers = [choose_device(wanted, index) for index in range(workers)].count(device)
    return device_memory(device, sharers)


def load_functions(setup: WorkerSetup) -> None:
    """Import what the user's functions need, before the first task: imports are no part of a unit, and may fail."""
    if setup.recipe.framework != "auto":
        load_framework(setup.recipe.framework)


def warm_up() -> None:
    """Take one empty step: the first optimizer imports a second's worth of PyTorch, which no model should pay for."""
    if "torch" not in sys.modules:
        return  # the user's functions did not import it
    import torch

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    optimizer.step()
