"""Sweep: what to train, and how. Thin: planning, training and keeping are done elsewhere."""

from __future__ import annotations

import inspect
import json
import math
import os
import pickle
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle
from blake3 import blake3

from regatta.cluster import Cluster
from regatta.configuration import Scalar, config_id, derive_seed
from regatta.data import Dataset
from regatta.data.order import permutation
from regatta.data.sharing import Sharing, sharing_of
from regatta.engine.archiver import Archiver
from regatta.engine.controller.runner import Runner
from regatta.engine.messages import (
    Recipe,
    SharingPlan,
    Task,
    WorkerSetup,
    unpickle_recipe,
)
from regatta.engine.planning.planner import Planner, PlanOptions
from regatta.engine.workers.start_process import expect_workers as expect_workers
from regatta.errors import UsageError, nearest
from regatta.format import count
from regatta.frameworks import LOSS_OR_TRAIN_FN, NAMES, OPTIONAL_LOSS_ARGUMENTS, may_have_own_loss
from regatta.journal.journal import VERSION
from regatta.journal.record import Listener, RunRecord
from regatta.paths import (
    MEETINGS,
    PROFILES,
    ensure_repository,
    find_repository,
    run_journal,
    run_logs,
    run_sweep,
    runs_folder,
    store_beside,
)
from regatta.plan.schedule.hopper import check_rule
from regatta.run import RUN_NAME, Run
from regatta.run_folders import code_of, find_unfinished, new_folder
from regatta.search.base import Goal, Search, Train
from regatta.search.predict import caveat, foreseen
from regatta.sinks import Sink, following, usable_sinks

if TYPE_CHECKING:
    from regatta.engine.planning.planner import RunStrategy
    from regatta.engine.profiling.cache import ProfileCache
    from regatta.engine.profiling.results import ProfilingResults
    from regatta.plan.strategy.plan_tree import Plan

OUTLINING, OUTLINING_SHARE = 0.25, 0.01  # seconds, or of a run's, that reading its networks may take when it ends
COMPILER = 3.0  # seconds in which PyTorch loads its compiler
LOADED_FILE: ContextVar[str | None] = ContextVar("the file that a command reads a sweep from", default=None)
_CALLS = {
    "model_fn": ("config",),
    "loss_fn": ("model", "batch", "config"),
    "train_fn": ("data", "model", "optimizer", "config"),
    "input_fn": ("path",),
    "eval_fn": ("data", "model", "config"),
    "transform_fn": ("batch", "seed"),
}


class Sweep:
    """Which models to train, on what, and how: `launch` trains them, `explain` says what that would take.

    - `model_fn(config)` returns a model, `(model, optimizer)`, or `(model, optimizer, schedule)`; a schedule is
      advanced once per epoch, `{"step": schedule}` once per batch.
    - `loss_fn(model, batch, config)` returns the loss of a batch of `config["batch_size"]` rows; or
      `train_fn(data, model, optimizer, config)` trains one pass over a partition by itself and returns metrics.
      Compiled Keras models need neither. A `loss_fn` with an argument `training` is told whether it is training.
    - `eval_fn(data, model, config)` returns metrics of an evaluation partition, beside the loss of `loss_fn`.
    - `input_fn(path)` reads one partition; without it, the files of the data set are read as arrays.
    - `transform_fn(batch, seed)` changes some rows of a training partition, another way in each epoch: augmentation.
      Its seed is of these rows and the epoch, not of a model: all models see the same. `share` has `input_fn` and
      `transform_fn` done once for all models, by processes of their own: where it pays (None), never, or always.
    - `metric` is what models are judged by, `mode` whether it should be "min" or "max".
    - `visits="seeded"` fixes the order in which each model visits the partitions, so that every launch gives the same
      weights; "free" leaves it to the scheduler, which is faster, and `replay` repeats what it did.
    - `rule` names the hop scheduler's rule; `cluster` says where to train; `repo` is the folder that keeps it all.
    - `unit_limit` is the most seconds that one unit may take: whatever takes longer hangs, and is tried again.
    - `pack` trains small models side by side, each exactly as if alone: where it pays (None), never, always, or at most
      so many. `numerics="fast"` allows a plan whose weights differ by rounding: models that several workers train.
    - `sinks` say where results go beside it: `["tensorboard", "mlflow", "csv:results.csv"]`, or of `regatta.sinks`.
    """

    def __init__(
        self,
        dataset: Dataset,
        search: Search,
        model_fn: Callable[[dict[str, Any]], Any],
        *,
        loss_fn: Callable[..., Any] | None = None,
        train_fn: Callable[..., Any] | None = None,
        input_fn: Callable[..., Any] | None = None,
        eval_fn: Callable[..., Any] | None = None,
        transform_fn: Callable[..., Any] | None = None,
        share: bool | Sharing | None = None,
        epochs: int = 1,
        metric: str = "loss",
        mode: Literal["min", "max"] | None = None,
        seed: int = 0,
        framework: str = "auto",
        cluster: Cluster | None = None,
        repo: str | Path | None = None,
        name: str | None = None,
        rule: str = "auto",
        visits: Literal["free", "seeded"] = "free",
        unit_limit: float | None = None,
        pack: bool | int | None = None,
        numerics: Literal["exact", "fast"] = "exact",
        sinks: str | Sink | Iterable[str | Sink] = (),
    ) -> None:
        _check_kind("dataset", dataset, isinstance(dataset, Dataset), "a regatta.Dataset")
        _check_kind("search", search, hasattr(search, "hear"), "a search, such as regatta.search.grid(...)")
        _check_kind("epochs", epochs, _is_count(epochs), "a whole number from 1")
        _check_kind("seed", seed, isinstance(seed, int), "a whole number")
        _check_kind(
            "cluster", cluster, isinstance(cluster, Cluster | None), "a Cluster, such as Cluster.local(workers=2)"
        )
        _check_kind("mode", mode, mode in ("min", "max", None), '"min" or "max"')
        if framework != "auto" and framework not in NAMES:
            raise UsageError(f"There is no framework {framework!r}.", candidates=nearest(framework, ("auto", *NAMES)))
        _check_kind("visits", visits, visits in ("free", "seeded"), '"free" or "seeded"')
        limits = unit_limit is None or (isinstance(unit_limit, int | float) and unit_limit > 0)
        _check_kind("unit_limit", unit_limit, limits, "a number of seconds above 0, or None")
        fine = isinstance(pack, bool) or pack is None or _is_count(pack)
        _check_kind("pack", pack, fine, "True, False, the most members of a pack, or None for where it pays")
        _check_kind("numerics", numerics, numerics in ("exact", "fast"), '"exact" or "fast"')
        if pack and cluster is not None and (cluster.kind == "ray" or (cluster.group or 1) > 1):
            where = "on Ray" if cluster.kind == "ray" else "by groups of workers"
            raise UsageError(
                f"Packs are not trained {where}.", hint="Leave pack= out, or use Cluster.local(workers=...)."
            )
        from regatta.repo.intake.metrics import usual_mode

        check_rule(rule)
        _check_solver(rule)
        self._sealed: Recipe | bytes = _recipe(model_fn, loss_fn, train_fn, input_fn, eval_fn, framework, transform_fn)
        self._prepares = input_fn is not None, transform_fn is not None
        self.share = sharing_of(share)
        self.dataset = dataset
        self.search = search
        self.goal = Goal(metric, mode or usual_mode(metric), epochs, seed)
        self.cluster = cluster or Cluster.local()
        self.repo = repo
        self.name = name
        self.rule = rule
        self.visits = visits
        self.unit_limit = unit_limit
        self.pack = pack
        self.numerics = numerics
        self.sinks = usable_sinks(sinks)
        self._check()

    def __repr__(self) -> str:
        count = len(self.configs())
        return f"<Sweep of {count} configurations on {self.dataset.name}, {self.goal.epochs} epochs>"

    def __getstate__(self) -> dict[str, Any]:
        """The functions sealed: whoever goes on with a run need not import what only its workers use."""
        sealed = self._sealed if isinstance(self._sealed, bytes) else cloudpickle.dumps(self._sealed)
        return {**vars(self), "_sealed": sealed}

    @property
    def recipe(self) -> Recipe:
        self._sealed = unpickle_recipe(self._sealed)
        return self._sealed

    def configs(self) -> dict[str, dict[str, Scalar]]:
        """The configurations that the search begins with, by id."""
        return {config_id(a.config): a.config for a in self.search.start(self.goal) if isinstance(a, Train)}

    def launch(self, wait: bool = True, progress: bool = True, resume: bool = True) -> Run:
        """Train. Without `wait` the run goes on in the background, and the `Run` is its future.

        A run of the same sweep that was interrupted or killed is gone on with, unless `resume` is False.
        """
        if LOADED_FILE.get() is not None:
            raise UsageError(
                "The file launches its sweep as it is read, but a command wants to do that itself.",
                place=LOADED_FILE.get(),
                hint='Put the launch under `if __name__ == "__main__":`, or train it with `python` alone.',
            )
        if self.cluster.kind == "process":
            expect_workers(self._sealed)
        runs = runs_folder(ensure_repository(self.repo))
        run = find_unfinished(runs, self.name, self.identity()) if resume else None
        return self.train(run or Run(self._new_folder(runs)), wait, progress)

    def train(self, run: Run, wait: bool = True, progress: bool = True) -> Run:
        """Begin a run whose folder was made, or go on with one."""
        if wait:
            self._train(run, progress)
        else:
            run.begin(lambda: self._train(run, progress))
        return run

    def identity(self) -> str:
        """The same for sweeps that would train the same: by the data, the search, the goal and the functions' code."""
        search = json.dumps(self.search.describe(), sort_keys=True, default=repr)
        parts = [search, repr(self.goal), self.rule, self.visits, self.dataset.fingerprint]
        codes = [code_of(getattr(self.recipe, name)) for name in _CALLS]
        return blake3(repr((parts, codes)).encode()).hexdigest()

    def explain(self, *, progress: bool = False) -> Plan:
        """The plan, from a few batches of each configuration; nothing is trained or kept."""
        found, decision = self._piloted(progress)
        if decision.plan is None:
            raise UsageError("There is nothing to make a plan of: no configuration was tried.")
        return replace(decision.plan, notes=tuple(self._notes(found, decision.plan)))

    def _notes(self, found: ProfilingResults, plan: Plan) -> Iterator[str]:
        from regatta.plan.strategy.plan_tree import PackNode

        outcome = found.outcome
        if outcome.failed:
            first = next(iter(outcome.failed.values()))
            failing = count(len(outcome.failed), "configuration")
            yield f"not in it: {failing}, for training fails; {first.task.config}: {first.error}"
        if outcome.cached and not outcome.ready:
            yield "nothing was tried: it was measured earlier; delete the repository's folder profiles to measure anew"
        if unforeseen := caveat(self.search, self.goal, foreseen(self.search, self.goal)):
            yield unforeseen
        if self.share.always and not any(self._prepares):
            yield "share=True: there is neither an input_fn nor a transform_fn whose work could be shared"
        if self.pack and self.visits == "seeded":
            yield f"pack={self.pack}: nothing is packed, for with visits='seeded' each model has an order of its own"
        elif self.pack and not any(isinstance(part, PackNode) for part in plan.root.parts):
            yield f"pack={self.pack}: nothing is packed, for {self._why_unpacked()}"

    def _why_unpacked(self) -> str:
        if self.pack == 1 and self.pack is not True:
            return "a pack of 1 is none"
        if self.recipe.train_fn is not None:
            return "a train_fn trains one model"
        return "no two models are of one build and as long"

    def what_if(self, workers: Sequence[int]) -> list[dict[str, Any]]:
        """What the sweep would take on so many workers like those of its cluster, by hops: a row for each number."""
        from regatta.plan.strategy.what_if import HopWorkload, what_if

        found, _ = self._piloted()
        wanted = foreseen(self.search, self.goal).items()
        epochs = {config: asked.epochs for config, asked in wanted if config not in found.outcome.failed}
        work = HopWorkload(epochs, len(self.dataset.train), len(self.dataset.eval), found.outcome.estimates)
        return what_if(work, workers, self.rule, self.goal.seed)

    def _piloted(self, progress: bool = False) -> tuple[ProfilingResults, RunStrategy]:
        """What pilots find out, and what is decided by it."""
        from regatta.engine.planning.planner import available_workers
        from regatta.engine.profiling.session import ProfilingSession
        from regatta.engine.workers import open_pool

        cluster, planner, configs = self.cluster.sized(len(self.dataset.train)), self._planner(), self.configs()
        wanted = foreseen(self.search, self.goal)
        inquiry = ProfilingSession(self.dataset, self.goal, configs, wanted, planner, cluster, self._profiles(cluster))
        with tempfile.TemporaryDirectory(prefix="regatta-pilot-") as folder:
            setup = self._setup(Path(folder))
            pool = open_pool(cluster, setup)
            found = inquiry.known(pool)
            if found is None:
                if progress:
                    from regatta.cli import ui

                    ui.message(f"trying a few batches of {count(len(configs), 'configuration')}")
                try:
                    found = inquiry.try_out(pool, setup.logs / MEETINGS)
                finally:
                    pool.close()
        return found, planner.decide(found, wanted, available_workers(pool, cluster, found.outcome))

    def _profiles(self, cluster: Cluster) -> ProfileCache | None:
        """What earlier pilots of the same functions, data and devices have found out, if there is a repository."""
        from regatta.engine.profiling.cache import ProfileCache, profile_key

        repository = find_repository() if self.repo is None else Path(self.repo)
        if repository is None or not repository.is_dir() or isinstance(self._sealed, bytes):
            return None  # a run that is gone on with needs no pilots
        codes = [code_of(getattr(self.recipe, name)) for name in _CALLS]
        return ProfileCache.open(
            repository / PROFILES, profile_key(codes, self.dataset, self.recipe.framework, cluster)
        )

    def _planner(self) -> Planner:
        share = self.share.always if any(self._prepares) else None  # there is nothing to share
        pack = False if self.visits == "seeded" else self.pack  # each model has an order of its own then
        return Planner(self.dataset, PlanOptions(pack, share, self.cluster.group, self.numerics))

    def execute(
        self,
        folder: Path,
        *,
        listeners: tuple[Listener, ...] = (),
        orders: Mapping[str, Mapping[int, Sequence[int]]] | None = None,
        widths: Callable[[Task], int] | None = None,
        began: Callable[[Runner], None] = lambda runner: None,
    ) -> RunRecord:
        """Train into a folder that is there already; what `launch` and `replay` share."""
        from regatta.engine.workers import open_pool

        cluster = self.cluster.sized(len(self.dataset.train))
        runner = Runner(
            folder=folder,
            header=lambda: self._header(folder.name, cluster),
            dataset=self.dataset,
            search=self.search,
            goal=self.goal,
            pool=open_pool(cluster, self._setup(folder), **({} if widths is None else {"widths": widths})),
            rule=self.rule,
            orders=self._visits if orders is None else lambda config, epochs: orders.get(config),
            unit_limit=self.unit_limit,
            planner=self._planner(),
            cluster=cluster,
            profiles=self._profiles(cluster),
            listeners=listeners,
        )
        began(runner)
        return runner.run()

    def _visits(self, config: str, epochs: int) -> dict[int, list[int]] | None:
        """The order in which a configuration must visit the partitions, if that is not the scheduler's choice."""
        if self.visits == "free":
            return None
        parts = len(self.dataset.train)
        seeds = {epoch: derive_seed(self.goal.seed, "visits", config, epoch) for epoch in range(1, epochs + 1)}
        return {epoch: [int(part) for part in permutation(parts, seed)] for epoch, seed in seeds.items()}

    def _new_folder(self, runs: Path) -> Path:
        folder = new_folder(runs, self.name, self.dataset.name)
        try:
            run_sweep(folder).write_bytes(self._packed())
        except BaseException:
            shutil.rmtree(folder)
            raise
        return folder

    def _train(self, run: Run, progress: bool) -> None:
        fresh = not run_journal(run.folder).exists()
        archiver = Archiver(run.folder, store_beside(run.folder))
        try:
            with _display(progress) as shown, following(self.sinks, run.folder, shown) as sinks:
                listeners = (run.follow, archiver.on_record, *shown, *sinks)
                run.record = self.execute(run.folder, listeners=listeners, began=run.can_halt)
        except UsageError:
            if fresh and not any(unit.kind == "train" for unit in run.record.units):
                shutil.rmtree(run.folder)  # the sweep was wrong and nothing was trained: there is nothing to keep
            raise
        finally:
            archiver.close()
            self._leave_versions(run)

    def _leave_versions(self, run: Run) -> None:
        """Every configuration becomes a version; where that fails, the run is none the worse for it."""
        seconds = self._patience_for_networks(run)
        reason = run.leave_versions(self.networks(run.record, seconds) if seconds else None)
        if reason is not None:
            from regatta.cli import ui

            ui.message(f"{run.name} is kept, but not yet as versions: {reason}\n  regatta commit --run {run.name}")

    def networks(self, record: RunRecord, seconds: float = math.inf) -> dict[str, str]:
        """The networks of a run's configurations that can be read without building weights, as JSON by id.

        Shapes are known of models that take the first column of the data.
        """
        from regatta.frameworks.outlines import outlines

        column = self.dataset.columns[0] if self.dataset.columns and not self.recipe.input_fn else None
        example = None if column is None else (column.dtype, column.shape)
        configs = {config.id: config.values for config in record.configs.values()}
        return outlines(self.recipe.model_fn, configs, seconds=seconds, example=example)

    def _patience_for_networks(self, run: Run) -> float:
        """How long reading networks may take when a run ends: little, and nothing where functions are not loaded.

        The first optimizer of a process has PyTorch load its compiler, which takes seconds: only long runs wait for it.
        """
        if isinstance(self._sealed, bytes) or not run.record.units or not run_journal(run.folder).exists():
            return 0.0
        share = OUTLINING_SHARE * run.record.resources().wall
        return max(OUTLINING, share) if "torch._dynamo" in sys.modules else share if share > COMPILER else 0.0

    def _setup(self, folder: Path) -> WorkerSetup:
        train = tuple(part.path for part in self.dataset.train)
        held_out = tuple(part.path for part in self.dataset.eval)
        return WorkerSetup(self._sealed, self.goal.seed, train, held_out, run_logs(folder), self._sharing())

    def _sharing(self) -> SharingPlan | None:
        """What is shared; nothing where nobody prepares anything, or where it would not pay."""
        reads, transforms = self._prepares
        if not transforms and not (reads and self.share.always):
            return None
        return SharingPlan(self.share, len(self.configs()), self.goal.epochs, reads, transforms)

    def _header(self, name: str, cluster: Cluster) -> dict[str, Any]:
        used = [name for name in ("keras", "tensorflow", "jax", "ray") if name in sys.modules]
        libraries = {package: _version(package) for package in ("regatta", "torch", "numpy", *used)}
        return {
            "version": VERSION,
            "name": name,
            "sweep": self.identity(),
            **vars(self.goal),
            "rule": self.rule,
            "search": self.search.describe(),
            "dataset": self.dataset.describe(),
            "cluster": cluster.describe(),
            "versions": {"python": platform.python_version(), **libraries},
            "path": os.path.abspath(sys.path[0] if sys.path else "."),  # where its functions find their neighbours
        }

    def _check(self) -> None:
        """What can be known to be wrong before anything is started."""
        self.dataset.check(input_fn=self.recipe.input_fn is not None)
        configs = self.configs()
        if not configs:
            raise UsageError("The search has no configuration to begin with.")
        if self.name is not None and not (isinstance(self.name, str) and RUN_NAME.fullmatch(self.name)):
            raise UsageError(f"A run cannot be named {self.name!r}; use letters, digits, '.', '-' and '_'.")
        if self.recipe.train_fn is None:
            for config in configs.values():
                _check_batch_size(config)

    def _packed(self) -> bytes:
        try:
            packed: bytes = cloudpickle.dumps(self)
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
            raise UsageError(
                f"The sweep's functions cannot be sent to workers: {error}.",
                hint="They must not hold on to open files, locks, connections and the like; open those inside.",
            ) from error
        return packed


def launch(
    dataset: Dataset,
    search: Search,
    model_fn: Callable[[dict[str, Any]], Any],
    *,
    wait: bool = True,
    progress: bool = True,
    **options: Any,
) -> Run:
    """Train all configurations of a search: `Sweep(dataset, search, model_fn, **options).launch()`."""
    known = [name for name, p in inspect.signature(Sweep).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise UsageError(
                f"launch has no argument {name!r}.", candidates=nearest(name, [*known, "wait", "progress"])
            )
    return Sweep(dataset, search, model_fn, **options).launch(wait=wait, progress=progress)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # installed under another name, as tensorflow-cpu is
        return str(getattr(sys.modules[package], "__version__", "unknown"))


@contextmanager
def _display(progress: bool) -> Iterator[tuple[Listener, ...]]:
    if not progress:
        yield ()
        return
    from regatta.cli.output.live_display import open_display

    with open_display() as listener:
        yield (listener,)


def _recipe(
    model_fn: Callable[..., Any],
    loss_fn: Callable[..., Any] | None,
    train_fn: Callable[..., Any] | None,
    input_fn: Callable[..., Any] | None,
    eval_fn: Callable[..., Any] | None,
    framework: str,
    transform_fn: Callable[..., Any] | None,
) -> Recipe:
    if loss_fn is not None and train_fn is not None:
        raise UsageError("Give either loss_fn or train_fn, not both.", hint=LOSS_OR_TRAIN_FN)
    if loss_fn is None and train_fn is None and not may_have_own_loss(framework):
        raise UsageError(
            "Give either loss_fn or train_fn.",
            hint=f'{LOSS_OR_TRAIN_FN} Compiled Keras models need neither: say framework="keras".',
        )
    recipe = Recipe(model_fn, loss_fn, train_fn, input_fn, eval_fn, framework, transform_fn)
    for name, arguments in _CALLS.items():
        function = getattr(recipe, name)
        if function is not None:
            _check_call(name, function, arguments, OPTIONAL_LOSS_ARGUMENTS if name == "loss_fn" else ())
    return recipe


def _check_call(name: str, function: object, arguments: tuple[str, ...], extras: tuple[str, ...] = ()) -> None:
    if not callable(function):
        raise UsageError(f"{name} is {function!r}, which cannot be called.")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # builtins need not have one
    try:
        signature.bind(*arguments, **{extra: None for extra in extras if extra in signature.parameters})
    except TypeError as error:
        raise UsageError(f"{name} is called as {name}({', '.join(arguments)}), but {error}.") from error


def _check_solver(rule: str) -> None:
    """Both TensorFlow and OR-Tools bring the same C++ library; where TensorFlow's came first, the solver crashes."""
    if rule == "cpsat" and "tensorflow" in sys.modules and "ortools.sat.python.cp_model" not in sys.modules:
        raise UsageError(
            "The hop rule 'cpsat' cannot work in a process that has imported TensorFlow before OR-Tools.",
            hint="Put `from ortools.sat.python import cp_model` before the import of keras, or take rule='auto'.",
        )


def _check_batch_size(config: Mapping[str, Scalar]) -> None:
    if "batch_size" not in config:
        raise UsageError(
            f"The configuration {dict(config)} has no batch_size, which batches are made by.",
            hint=_batch_size_hint(config),
        )
    _check_kind("batch_size", config["batch_size"], _is_count(config["batch_size"]), "a whole number from 1")


def _batch_size_hint(config: Mapping[str, Scalar]) -> str:
    near = nearest("batch_size", config, 1)
    return f"Rename {near[0]!r} to 'batch_size'." if near else "Add it to the search, for instance batch_size=[32]."


def _check_kind(name: str, value: object, right: bool, wanted: str) -> None:
    if not right:
        raise UsageError(f"{name} is {value!r}; it must be {wanted}.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
