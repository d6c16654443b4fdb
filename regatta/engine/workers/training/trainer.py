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
from regatta.engine.workers.training.group_member import Membership, seed_of
from regatta.engine.workers.training.model_cache import Bench, Kept
from regatta.engine.workers.training.packs import Packs
from regatta.engine.workers.training.partition_cache import Supplies
from regatta.engine.workers.training.profiler import ROWS, SAMPLE, Pilots
from regatta.engine.workers.training.warm_start import inherit
from regatta.errors import DiskError, RegattaError, UsageError
from regatta.frameworks import (
    Framework,
    contained_in_all,
    framework_of,
    load_framework,
    loaded,
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
class _Result:
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
    kept: Kept = field(default_factory=Kept)
    _ahead: tuple[Path, Any] | None = None
    _ahead_lock: threading.Lock = field(default_factory=threading.Lock)

    @functools.cached_property
    def supplies(self) -> Supplies:
        return Supplies(self.setup, self.device)

    @functools.cached_property
    def packs(self) -> Packs:
        return Packs(self)

    @functools.cached_property
    def pilots(self) -> Pilots:
        return Pilots(self)

    @functools.cached_property
    def membership(self) -> Membership:
        return Membership(self)

    def run(self, task: Task) -> TaskDone | TaskFailed | PackDone:
        """Do a task; whatever the user's functions raise is the configuration's failure."""
        return self.packs.run(task) if task.packed_with and task.kind != "pilot" else self.run_one(task)

    def run_one(self, task: Task, at_hand: Bench | None = None) -> TaskDone | TaskFailed:
        """Do a task of one configuration; a model to judge may be at hand, with its state."""
        start = time.time()
        try:
            with self.contained():
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

    def _train(self, task: Task) -> _Result:
        recipe, values, costs = self.setup.recipe, task.values, Costs()
        bench, data = self.set_up("train", task.partition, task, costs)
        framework, trainee = bench.framework, bench.trainee
        rows = framework.rows(data)
        seed = unit_seed(self.setup.seed, values, task.epoch, task.partition)
        with framework.seeded(seed_of(task.group_rank, seed)):
            if recipe.train_fn is None:
                batches = batch_order(rows, batch_size(values), seed)
                with self.membership.timed(task, costs):
                    found = self.doing("train", framework, task)(trainee, data, batches, recipe.loss_fn, dict(values))
            else:
                found = self.train_opaque(bench, data, task)
            if task.ends_epoch:
                framework.end_epoch(trainee)
        if task.state_out is not None:  # one of a group leaves it for all
            self.leave(framework, trainee, task.state_out, costs)
            bench.bytes = task.state_out.stat().st_size
        self.kept.put(task.config, bench)
        return _Result(rows, {train_name(name): value for name, value in found.items()}, costs)

    def train_opaque(self, bench: Bench, data: Any, task: Task) -> dict[str, float]:
        """Have the user's train_fn train."""
        train_fn, framework = self.setup.recipe.train_fn, bench.framework
        assert train_fn is not None
        with self._shared(framework, data):
            return _metrics(train_fn(data, *framework.handed(bench.trainee), dict(task.values)), "train_fn")

    def set_up(self, kind: Literal["train", "eval"], index: int, task: Task, costs: Costs) -> tuple[Bench, Any]:
        """The model of a task and its data; in a group, all have them, or all fail."""
        with self.membership.agreeing(task) as prepared:
            bench = self.fetch(task, costs)
            data = self.partition(kind, index, bench.framework, costs, task)
            prepared(bench, data)
        return bench, data

    def doing(self, what: Literal["train", "evaluate"], framework: Framework, task: Task) -> Callable[..., Any]:
        """How the framework trains or evaluates, by this worker or by its group."""
        alone: Callable[..., Any] = getattr(framework, what)
        return alone if task.group_rank is None else self.membership.doing(what, task.group_rank)

    def _evaluate(self, task: Task) -> _Result:
        costs = Costs()
        bench, data = self.set_up("eval", task.partition, task, costs)
        with self.membership.timed(task, costs):
            found = self._judge(bench, data, task)
        self.kept.put(task.config, bench)
        return _Result(bench.framework.rows(data), found, costs)

    def _evaluate_at_hand(self, task: Task, bench: Bench, costs: Costs) -> _Result:
        data = self.partition("eval", task.partition, bench.framework, costs)
        found = self._judge(bench, data, task)
        return _Result(bench.framework.rows(data), found, costs)

    def _judge(self, bench: Bench, data: Any, task: Task) -> dict[str, float]:
        """The metrics of a model on evaluation data."""
        recipe, values, metrics = self.setup.recipe, task.values, dict[str, float]()
        with bench.framework.seeded(derive_seed(self.setup.seed, "eval")):
            if recipe.train_fn is None:
                order = in_order(bench.framework.rows(data), batch_size(values))
                judge = self.doing("evaluate", bench.framework, task)
                metrics |= judge(bench.trainee, data, order, recipe.loss_fn, dict(values))
            return metrics | self.judged_by_user(bench, data, task)

    def judged_by_user(self, bench: Bench, data: Any, task: Task) -> dict[str, float]:
        """What eval_fn says, if there is one; the first of a group asks it for all."""
        eval_fn, framework = self.setup.recipe.eval_fn, bench.framework
        if eval_fn is None or (task.group_rank is not None and task.group_rank.rank != 0):
            return {}
        with self._shared(framework, data), framework.evaluating(bench.trainee):
            return _metrics(eval_fn(data, bench.trainee.model, dict(task.values)), "eval_fn")

    def fetch(self, task: Task, costs: Costs) -> Bench:
        """The model of a task with its state."""
        kept = self.kept.take(task.config)
        if task.state_in is None:
            return self._begin(self.build(task.values), kept)
        bench = kept if kept and task.parent is None else self.build(task.values)
        start = time.perf_counter()
        if task.parent is None:
            bench.framework.restore(bench.trainee, self._read(bench.framework, task.state_in))
        else:
            inherit(bench.framework, self.build(task.parent).trainee, bench.trainee, task.state_in)
        costs.hop_seconds = time.perf_counter() - start
        costs.hop_bytes = bench.bytes = task.state_in.stat().st_size
        return bench

    def _begin(self, new: Bench, kept: Bench | None) -> Bench:
        """A new model; its initial state goes into a trainee that was kept, if there is one, for it is compiled."""
        if kept is None:
            return new
        with self.scratch() as path:
            new.framework.save(new.trainee, path)
            kept.framework.restore(kept.trainee, kept.framework.read(path))
        return kept

    def build(self, values: Mapping[str, Scalar]) -> Bench:
        before = loaded()
        built = self._build_once(values)
        if loaded() != before:  # it brought its framework along, whose random numbers were not seeded yet
            built = self._build_once(values)
        name = self.setup.recipe.framework
        framework = framework_of(built) if name == "auto" else load_framework(name)
        trainee = framework.assemble(built, self.device)
        return Bench(framework, trainee, framework.loose(trainee) if framework.COMPILES else {})

    def _build_once(self, values: Mapping[str, Scalar]) -> Any:
        name, seed = self.setup.recipe.framework, initial_seed(self.setup.seed, values)
        with seeded_in_all(seed) if name == "auto" else load_framework(name).seeded(seed):
            return self.setup.recipe.model_fn(dict(values))

    def contained(self) -> contextlib.AbstractContextManager[None]:
        name = self.setup.recipe.framework
        return contained_in_all() if name == "auto" else load_framework(name).contained()

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
            return self.supplies.partition(kind, index, framework, costs)
        if task.kind == "pilot" and self.setup.recipe.transform_fn is not None:
            opaque = self.setup.recipe.train_fn is not None
            most = SAMPLE * (ROWS if opaque else batch_size(task.values))
            return self.supplies.sample(index, framework, most, costs)
        models = (task.config, *(mate.config for mate in task.packed_with))
        return self.supplies.partition(kind, index, framework, costs, task.epoch, models)

    @contextlib.contextmanager
    def _shared(self, framework: Framework, data: Any) -> Iterator[None]:
        """A scope in which the user's functions hold data that others will see; if they change it, it is read again."""
        try:
            with framework.untouched(data):
                yield
        except UsageError:
            self.supplies.forget()
            raise

    def _pilot(self, task: Task) -> _Result:
        """Measure a few batches of a new model, or of several side by side; nothing of it is kept but the data."""
        costs = Costs()
        if task.packed_with:
            return _Result(0, {}, costs, pack_profile=self.packs.pilot(task))
        return _Result(0, {}, costs, self.pilots.run(task, costs))

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
