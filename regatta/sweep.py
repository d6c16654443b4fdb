"""Sweep: what to train, and how. It is thin: other packages plan, train and keep."""

from __future__ import annotations

import copy
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

from blake3 import blake3

from regatta.checks import (
    check_argument,
    check_batch_size,
    check_signature,
    check_solver_import,
    is_whole,
    refuses_unknown_names,
)
from regatta.cluster import Cluster
from regatta.code_identity import describe_code
from regatta.configuration import Scalar, config_id
from regatta.data import Dataset
from regatta.data.dataset_choice import paths_of
from regatta.data.order import permutation
from regatta.data.sharing import Sharing, sharing_of
from regatta.engine import workers as worker_pools
from regatta.engine.archiver import Archiver
from regatta.engine.controller.runner import Runner
from regatta.engine.controller.settings import RunSettings
from regatta.engine.messages import Recipe, SharingPlan, Task, WorkerSetup, unpickle_recipe
from regatta.engine.module_code import RunCode, code_again, code_changes, code_of, read_code, write_code
from regatta.engine.planning.planner import Planner, PlanOptions, RunStrategy, available_workers
from regatta.engine.profiling.cache import ProfileCache, profile_key
from regatta.engine.profiling.models import ProfilingRequest, ProfilingResults
from regatta.engine.profiling.session import ProfilingSession
from regatta.engine.resumable_runs import find_unfinished, new_folder, sweep_identity
from regatta.engine.workers.start_process import expect_workers as expect_workers
from regatta.errors import ConflictError, UsageError, nearest
from regatta.format import brief, count
from regatta.frameworks import (
    LOSS_OR_TRAIN_FN,
    NAMES,
    OPTIONAL_LOSS_ARGUMENTS,
    OPTIONAL_TRAIN_ARGUMENTS,
    may_have_own_loss,
)
from regatta.journal.journal_file import VERSION
from regatta.journal.run_record import Listener, RunRecord
from regatta.journal.unpickle import to_pickle
from regatta.paths import (
    JOURNAL,
    LOGS,
    MEETINGS,
    MODELS,
    PROFILES,
    RUN_NAME,
    RUNS,
    SWEEP,
    ensure_repository,
    find_repository,
    project_folder,
    store_beside,
)
from regatta.plan.schedule.hopper import check_rule
from regatta.plan.strategy.costs import UNIT_PAUSE_S
from regatta.plan.strategy.plan_tree import PackNode, Plan
from regatta.plan.strategy.what_if import HopWorkload, what_if
from regatta.run import Run
from regatta.search.base import Goal, Search, Train
from regatta.search.predict import describe_forecast_limits, forecast
from regatta.seeds import derive_seed
from regatta.sinks import Sink, following, usable_sinks

if TYPE_CHECKING:
    from regatta.repo import Version

NETWORKS_S, NETWORKS_SHARE = 0.25, 0.01  # reading networks at the end of a run may take this long, or this share of it
COMPILER_LOAD_S = 3.0  # PyTorch takes this long to load its compiler
LOADED_FILE: ContextVar[str | None] = ContextVar("the file that a command reads a sweep from", default=None)
_FUNCTION_ARGUMENTS = {
    "model_fn": ("config",),
    "loss_fn": ("model", "batch", "config"),
    "train_fn": ("data", "model", "optimizer", "config"),
    "input_fn": ("path",),
    "eval_fn": ("data", "model", "config"),
    "transform_fn": ("batch", "seed"),
}
_OPTIONAL_ARGUMENTS = {"loss_fn": OPTIONAL_LOSS_ARGUMENTS, "train_fn": OPTIONAL_TRAIN_ARGUMENTS}
_RENAMED_ATTRIBUTES = {"_sealed": "_recipe", "_prepares": "_preprocessing"}  # in sweeps pickled by earlier versions


class Sweep:
    """Which models to train, on which data, and how: `launch` trains them, `explain` predicts the time.

    - `model_fn(config)` returns a model, `(model, optimizer)`, or `(model, optimizer, schedule)`; a schedule is
      advanced once per epoch, `{"step": schedule}` once per batch.
    - `loss_fn(model, batch, config)` returns the loss of a batch of `config["batch_size"]` rows. Alternatively,
      `train_fn(data, model, optimizer, config)` trains one pass over a partition and returns metrics. Compiled Keras
      models need neither. A `loss_fn` with an argument `training` receives whether the model is being trained. A
      `train_fn` with an argument `schedule` receives the schedule of `{"step": schedule}`, and advances it itself.
    - `eval_fn(data, model, config)` returns metrics of an evaluation partition, in addition to the loss of `loss_fn`.
    - `input_fn(path)` reads one partition. Without it, the files of the data set are read as arrays.
    - `transform_fn(batch, seed)` changes rows of a training partition differently in each epoch (augmentation). The
      seed depends on the rows and the epoch, not on the model, so all models see the same rows. `share` runs `input_fn`
      and `transform_fn` once for all models, in processes of their own: where it pays (None), never, or always.
    - `metric` is the metric that ranks the models; `mode` says whether "min" or "max" is better.
    - `visits="seeded"` fixes the order in which each model visits the partitions, so that every launch gives the same
      weights. "free" leaves the order to the scheduler, which is faster; `replay` repeats the order of a run.
    - `rule` names the hop scheduler's rule; `cluster` says where to train; `repo` is the folder that keeps everything.
    - `unit_limit` is the longest time in seconds that one unit may take. A unit that takes longer is tried again.
    - `pack` trains small models together, each exactly as if alone: where it pays (None), never, always, or at most
      this many. `numerics="fast"` allows plans whose weights differ by rounding: several workers train one model.
    - `sinks` say where else results go: `["tensorboard", "mlflow", "csv:results.csv"]`, or objects of `regatta.sinks`.
    - `base` is the version that the models come from: those of the run become its children in the lineage. Where they
      come from several, it is a dict of versions by the value `config["model"]`.
    """

    @refuses_unknown_names
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
        base: str | Version | Mapping[str, str | Version] | None = None,
    ) -> None:
        remedy = "Make one: regatta.Dataset.from_arrays(x, y, partitions=4)"
        check_argument("dataset", dataset, isinstance(dataset, Dataset), "a regatta.Dataset", remedy)
        kind = "grid" if isinstance(search, Mapping) else "configs"
        hint = f"Pass it to regatta.search.{kind}(...)" if isinstance(search, Mapping | list) else None
        check_argument("search", search, hasattr(search, "hear"), "a search, such as regatta.search.grid(...)", hint)
        check_argument("epochs", epochs, is_whole(epochs), "a whole number from 1")
        check_argument("seed", seed, isinstance(seed, int), "a whole number")
        check_argument(
            "cluster", cluster, isinstance(cluster, Cluster | None), "a Cluster, such as Cluster.local(workers=2)"
        )
        check_argument("mode", mode, mode in ("min", "max", None), '"min" or "max"')
        _check_framework(framework)
        check_argument("visits", visits, visits in ("free", "seeded"), '"free" or "seeded"')
        limits = unit_limit is None or (isinstance(unit_limit, int | float) and unit_limit > 0)
        check_argument("unit_limit", unit_limit, limits, "a number of seconds above 0, or None")
        _check_pack(pack, cluster)
        check_argument("numerics", numerics, numerics in ("exact", "fast"), '"exact" or "fast"')
        check_argument("metric", metric, isinstance(metric, str) and metric != "", 'a name such as "loss"')
        from regatta.repo.intake.metrics import usual_mode

        check_rule(rule)
        check_solver_import(rule)
        recipe = Recipe(model_fn, loss_fn, train_fn, input_fn, eval_fn, framework, transform_fn)
        _check_recipe(recipe)
        self._recipe: Recipe | bytes = recipe  # bytes: pickled
        self._preprocessing = input_fn is not None, transform_fn is not None
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
        self.base = _base_ids(base, repo)
        self._check()

    def __repr__(self) -> str:
        count = len(self.configs())
        return f"<Sweep of {count} configurations on {self.dataset.name}, {self.goal.epochs} epochs>"

    def __getstate__(self) -> dict[str, Any]:
        """The recipe is pickled separately, so that resuming a run does not import the modules of its workers."""
        recipe = self._recipe if isinstance(self._recipe, bytes) else to_pickle(self._recipe)
        return {**vars(self), "_recipe": recipe}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Attributes of runs that were saved by earlier versions get their present names."""
        self.base = {}  # earlier versions had none
        vars(self).update({_RENAMED_ATTRIBUTES.get(name, name): value for name, value in state.items()})

    @property
    def recipe(self) -> Recipe:
        self._recipe = unpickle_recipe(self._recipe)
        return self._recipe

    def configs(self) -> dict[str, dict[str, Scalar]]:
        """The configurations that the search begins with, by id."""
        return {config_id(a.config): a.config for a in self.search.start(self.goal) if isinstance(a, Train)}

    def launch(self, wait: bool = True, progress: bool = True, resume: bool = True, changed_code: bool = False) -> Run:
        """Train. Without `wait` it trains in the background, and the `Run` is its future.

        A run of the same sweep that was interrupted or killed is resumed, unless `resume` is False. If the code of its
        functions has changed since, a new run begins; `changed_code=True` resumes the old one with the new code.
        """
        if LOADED_FILE.get() is not None:
            raise UsageError(
                "The file launches its sweep while it is read, but the command launches the sweep itself.",
                place=LOADED_FILE.get(),
                hint='Put the launch under `if __name__ == "__main__":`, or train it with `python` alone.',
            )
        self.cluster.check_available()
        if self.cluster.kind == "process":
            expect_workers(self._recipe)
        runs = ensure_repository(self.repo) / RUNS
        run = self._unfinished(runs, changed_code) if resume else None
        if run is not None:
            self._move_models(run.folder)
        return self.train(run or Run(self._new_folder(runs)), wait, progress, changed_code)

    def _unfinished(self, runs: Path, changed_code: bool) -> Run | None:
        """The run to resume: of the same sweep and code, or of other code if that is wanted."""
        identity, task = self.identity(), self._task()
        run = find_unfinished(runs, self.name, lambda folder: sweep_identity(folder) == identity)
        if run is not None and not code_changes(read_code(run.folder)):
            return run
        run = run or find_unfinished(runs, self.name, lambda folder: (read_code(folder) or {}).get("task") == task)
        if run is None or changed_code:
            return run
        changes = self._changes(read_code(run.folder))
        if self.name is not None:
            raise changed_code_error(run.name, changes)
        from regatta.cli import ui

        ui.message(
            f"{run.name} was interrupted and is not resumed, because its code has changed: {'; '.join(changes)}\n"
            f"This is a new run. `regatta resume {run.name}` resumes the old one with the functions of its launch. "
            "`regatta run FILE --changed-code` or launch(changed_code=True) resumes it with the new ones."
        )
        return None

    def _changes(self, code: RunCode | None) -> list[str]:
        """What is different in the code since a run recorded it: functions of this sweep, and the user's modules."""
        then = (code or {}).get("functions", {})
        functions: list[str] = []
        if not isinstance(self._recipe, bytes):  # otherwise its functions were saved with the run
            functions = [name for name, now in self._function_hashes().items() if then.get(name, now) != now]
        return [*functions, *map(str, code_changes(code))]

    def train(self, run: Run, wait: bool = True, progress: bool = True, changed_code: bool = False) -> Run:
        """Start a run in its new folder, or resume one: if its code has changed since, only with `changed_code`."""
        changes = code_changes(read_code(run.folder))
        if changes and not changed_code:
            raise changed_code_error(run.name, list(map(str, changes)))
        if wait:
            try:
                self._train(run, progress)
            except KeyboardInterrupt:
                raise KeyboardInterrupt from None  # the frames of the controller say nothing to the user
        else:
            run.begin(lambda: self._train(run, progress))
        return run

    def identity(self) -> str:
        """A hash of the data, the search, the goal and the functions' code: equal for sweeps that train the same."""
        return blake3(repr((self._parts(), self._codes())).encode()).hexdigest()

    def _task(self) -> str:
        """The same hash without the functions' code."""
        return blake3(repr(self._parts()).encode()).hexdigest()

    def _parts(self) -> list[str]:
        search = json.dumps(self.search.describe(), sort_keys=True, default=repr)
        return [search, repr(self.goal), self.rule, self.visits, self.dataset.fingerprint]

    def _function_hashes(self) -> dict[str, str]:
        described = {name: describe_code(getattr(self.recipe, name)) for name in _FUNCTION_ARGUMENTS}
        return {name: blake3(repr(code).encode()).hexdigest(length=8) for name, code in described.items()}

    def _code(self) -> RunCode:
        """The code of the functions and of the user's modules that they need."""
        pickles = (to_pickle(self.recipe), to_pickle(self.search))
        return {**code_of(*pickles), "functions": self._function_hashes(), "task": self._task(), "changed": []}

    def _codes(self) -> list[object]:
        return [describe_code(getattr(self.recipe, name)) for name in _FUNCTION_ARGUMENTS]

    def explain(self, *, progress: bool = False) -> Plan:
        """The plan, from a few batches of each configuration. Nothing is trained or kept."""
        found, strategy = self._profile(progress)
        if strategy.plan is None:
            raise UsageError("There is nothing to plan: no configuration was profiled.")
        return replace(strategy.plan, notes=tuple(self._notes(found, strategy.plan)))

    def _notes(self, found: ProfilingResults, plan: Plan) -> Iterator[str]:
        outcome = found.models
        if outcome.failed:
            first = next(iter(outcome.failed.values()))
            failing = count(len(outcome.failed), "configuration")
            yield f"not in the plan: {failing}, because training fails; {first.task.config}: {first.error}"
        if outcome.cached and not outcome.ready:
            yield "no profiling: the times are from earlier; delete the repository's folder profiles to measure again"
        if limits := describe_forecast_limits(self.search, self.goal, forecast(self.search, self.goal)):
            yield limits
        if self.share.always and not any(self._preprocessing):
            yield "share=True: there is neither an input_fn nor a transform_fn whose work could be shared"
        if self.pack and self.visits == "seeded":
            yield f"pack={self.pack}: nothing is packed, because visits='seeded' gives each model its own order"
        elif self.pack and not any(isinstance(part, PackNode) for part in plan.root.parts):
            if self.pack == 1 and self.pack is not True:
                reason = "a pack needs 2 models"
            elif self.recipe.train_fn is not None:
                reason = "a train_fn trains one model"
            else:
                reason = "no two models have the same structure and the same number of epochs"
            yield f"pack={self.pack}: nothing is packed, because {reason}"

    def what_if(self, workers: Sequence[int]) -> list[dict[str, Any]]:
        """The time that the sweep would take by hops on other numbers of workers: a row for each number."""
        found, _ = self._profile()
        wanted = forecast(self.search, self.goal).items()
        epochs = {config: asked.epochs for config, asked in wanted if config not in found.models.failed}
        estimates = found.models.estimates
        work = HopWorkload(epochs, len(self.dataset.train), len(self.dataset.eval), estimates, UNIT_PAUSE_S)
        return what_if(work, workers, self.rule, self.goal.seed)

    def _profile(self, progress: bool = False) -> tuple[ProfilingResults, RunStrategy]:
        """Profile the configurations, and choose a strategy from the results."""
        self.cluster.check_available()
        cluster, planner, configs = self.cluster.sized(len(self.dataset.train)), self._planner(), self.configs()
        wanted = forecast(self.search, self.goal)
        request = ProfilingRequest(self.dataset, self.goal, configs, self._profiles(cluster))
        session = ProfilingSession(request, wanted, planner, cluster)
        with tempfile.TemporaryDirectory(prefix="regatta-profiling-") as folder:
            setup = self._setup(Path(folder))
            pool = worker_pools.open_pool(cluster, setup)
            found = session.cached_results(pool)
            if found is None:
                if progress:
                    from regatta.cli import ui

                    ui.message(f"training a few batches of {count(len(configs), 'configuration')}")
                try:
                    found = session.run(pool, setup.logs / MEETINGS)
                finally:
                    pool.close()
        return found, planner.decide(found, wanted, available_workers(pool, cluster, found.models))

    def _profiles(self, cluster: Cluster) -> ProfileCache | None:
        """The profiles of the same functions, data and devices in the repository, if there is one."""
        repository = find_repository() if self.repo is None else Path(self.repo)
        if repository is None or not repository.is_dir() or isinstance(self._recipe, bytes):
            return None  # a resumed run needs no profiles
        key = profile_key(self._codes(), self.dataset, self.recipe.framework, cluster)
        return ProfileCache.open(repository / PROFILES, key)

    def _planner(self) -> Planner:
        share = self.share.always if any(self._preprocessing) else None  # None: there is nothing to share
        pack = False if self.visits == "seeded" else self.pack  # with seeded visits, each model has its own order
        return Planner(self.dataset, PlanOptions(pack, share, self.cluster.group, self.numerics))

    def execute(
        self,
        folder: Path,
        *,
        listeners: tuple[Listener, ...] = (),
        orders: Mapping[str, Mapping[int, Sequence[int]]] | None = None,
        widths: Callable[[Task], int] | None = None,
        began: Callable[[Runner], None] = lambda runner: None,
        changed_code: Sequence[str] = (),
    ) -> RunRecord:
        """Train into an existing folder: `launch` and `replay` use it."""
        self.cluster.check_available()
        cluster = self.cluster.sized(len(self.dataset.train))
        settings = RunSettings(
            folder=folder,
            header=lambda: self._header(folder, cluster),
            dataset=self.dataset,
            search=self.search,
            goal=self.goal,
            pool=worker_pools.open_pool(cluster, self._setup(folder), **({} if widths is None else {"widths": widths})),
            rule=self.rule,
            orders=self._visits if orders is None else lambda config, epochs: orders.get(config),
            unit_limit_s=self.unit_limit,
            planner=self._planner(),
            cluster=cluster,
            profiles=self._profiles(cluster),
            listeners=listeners,
            changed_code=changed_code,
        )
        runner = Runner(settings)
        began(runner)
        return runner.run()

    def _visits(self, config: str, epochs: int) -> dict[int, list[int]] | None:
        """The order in which a configuration must visit the partitions; None if the scheduler chooses it."""
        if self.visits == "free":
            return None
        parts = len(self.dataset.train)
        seeds = {epoch: derive_seed(self.goal.seed, "visits", config, epoch) for epoch in range(1, epochs + 1)}
        return {epoch: [int(part) for part in permutation(parts, seed)] for epoch, seed in seeds.items()}

    def _new_folder(self, runs: Path) -> Path:
        folder = new_folder(runs, self.name, self.dataset.name)
        try:
            self._move_models(folder)
            (folder / SWEEP).write_bytes(self._pickle(project_folder(runs.parent)))
            write_code(folder, self._code())
        except BaseException:
            shutil.rmtree(folder)
            raise
        return folder

    def _move_models(self, folder: Path) -> None:
        """Where the models are read from files, these belong to the run."""
        move = getattr(self.recipe.model_fn, "move_to", None)
        if move is not None:
            move(folder)

    def _train(self, run: Run, progress: bool) -> None:
        fresh = not (run.folder / JOURNAL).exists()
        archiver = Archiver(run.folder, store_beside(run.folder))
        try:
            with _display(progress) as shown, following(self.sinks, run.folder, shown) as sinks:
                listeners = (run.follow, archiver.on_record, *shown, *sinks)
                changed = self._accept_changes(run.folder)
                run.record = self.execute(run.folder, listeners=listeners, began=run.can_halt, changed_code=changed)
        except UsageError:
            if fresh and not any(unit.kind == "train" for unit in run.record.units):
                shutil.rmtree(run.folder)  # the sweep is wrong and nothing was trained, so there is nothing to keep
            raise
        finally:
            archiver.close()
            self._commit_versions(run)

    def _accept_changes(self, folder: Path) -> list[str]:
        """What has changed in the code of a run that is resumed; the new code is that of the run from now on."""
        code = read_code(folder)
        changes = self._changes(code)
        if code is not None and changes:
            new = code_again(code) if isinstance(self._recipe, bytes) else self._code()
            write_code(folder, {**code, **new, "changed": [*code["changed"], *changes]})
        return changes

    def _commit_versions(self, run: Run) -> None:
        """Every configuration becomes a version. If that fails, the run is still complete."""
        try:
            seconds = self._seconds_for_networks(run)
            networks = self.networks(run.record, seconds) if seconds else None
        except Exception:  # noqa: BLE001 (the functions of a resumed run may only load in its workers)
            networks = None
        reason = run.leave_versions(networks)
        if reason is not None:
            from regatta.cli import ui

            ui.message(f"{run.name} is kept, but not yet as versions: {reason}\n  regatta commit --run {run.name}")

    def networks(self, record: RunRecord, seconds: float = math.inf) -> dict[str, str]:
        """The networks of a run's configurations that can be read without allocating weights, as JSON by id.

        Shapes are known for models that take the first column of the data.
        """
        from regatta.frameworks.model_outlines import outlines

        network_of = getattr(self.recipe.model_fn, "network_of", None)
        if network_of is not None:
            return {config.id: network_of(config.values) for config in record.configs.values()}
        column = self.dataset.columns[0] if self.dataset.columns and not self.recipe.input_fn else None
        example = None if column is None else (column.dtype, column.shape)
        configs = {config.id: config.values for config in record.configs.values()}
        return outlines(self.recipe.model_fn, configs, seconds=seconds, example=example)

    def _seconds_for_networks(self, run: Run) -> float:
        """How long reading networks may take when a run ends.

        The first optimizer in a process makes PyTorch load its compiler, which takes seconds. Only long runs wait.
        """
        if not run.record.units or not (run.folder / JOURNAL).exists():
            return 0.0
        if (run.folder / MODELS).is_dir():
            return math.inf  # they are in files
        share = NETWORKS_SHARE * run.record.resources().wall
        if "torch._dynamo" in sys.modules:
            return max(NETWORKS_S, share)
        return share if share > COMPILER_LOAD_S else 0.0

    def _setup(self, folder: Path) -> WorkerSetup:
        train = tuple(part.path for part in self.dataset.train)
        held_out = tuple(part.path for part in self.dataset.eval)
        choice = None if self.dataset.choice is None else paths_of(self.dataset.choice)
        return WorkerSetup(self._recipe, self.goal.seed, train, held_out, folder / LOGS, self._sharing(), choice)

    def _sharing(self) -> SharingPlan | None:
        """Which preprocessing is shared; None where there is none, or where sharing would not pay."""
        reads, transforms = self._preprocessing
        if not transforms and not (reads and self.share.always):
            return None
        return SharingPlan(self.share, len(self.configs()), self.goal.epochs, reads, transforms)

    def _header(self, folder: Path, cluster: Cluster) -> dict[str, Any]:
        modules = Path(os.path.abspath(sys.path[0] if sys.path else "."))  # its functions import modules from here
        project = project_folder(folder.absolute().parents[1])
        used = [name for name in ("keras", "tensorflow", "jax", "ray") if name in sys.modules]
        libraries = {package: _version(package) for package in ("regatta", "torch", "numpy", *used)}
        return {
            "version": VERSION,
            "name": folder.name,
            "sweep": self.identity(),
            **vars(self.goal),
            "rule": self.rule,
            "search": self.search.describe(),
            "dataset": self.dataset.describe(),
            "cluster": cluster.describe(),
            "versions": {"python": platform.python_version(), **libraries},
            "path": str(modules.relative_to(project) if modules.is_relative_to(project) else modules),
            **({"base": self.base} if self.base else {}),
        }

    def _check(self) -> None:
        """Find errors before anything is started."""
        self.dataset.check(input_fn=self.recipe.input_fn is not None)
        configs = self.configs()
        if not configs:
            raise UsageError("The search has no configuration to begin with.")
        if self.dataset.choice is not None:
            for config in configs.values():
                self.dataset.choice.of(config)
            if self.recipe.transform_fn is not None or self.share.always:
                raise UsageError("Preprocessing is not shared, and no transform_fn called, for several data sets.")
        if self.name is not None and not (isinstance(self.name, str) and RUN_NAME.fullmatch(self.name)):
            raise UsageError(f"A run cannot be named {brief(self.name)}; use letters, digits, '.', '-' and '_'.")
        if self.recipe.train_fn is None:
            for config in configs.values():
                check_batch_size(config)
        elif getattr(self.search, "counts_iterations", False):
            raise UsageError(
                "A rule of the search counts iterations, but train_fn makes its own batches.",
                hint='Count epochs: top(5, "loss", 3, "epochs").',
            )

    def _pickle(self, project: Path) -> bytes:
        """The sweep for the folder of its run. Data inside the project is found again after the project was moved."""
        try:
            portable = copy.copy(self)
            portable.dataset = self.dataset.relative_to(project)
            pickled: bytes = to_pickle(portable)
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
            raise UsageError(
                f"The sweep's functions cannot be sent to workers: {error}.",
                hint="They must not refer to open files, locks or connections; open those inside the functions.",
            ) from error
        return pickled


@refuses_unknown_names
def launch(
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
    base: str | Version | Mapping[str, str | Version] | None = None,
    wait: bool = True,
    progress: bool = True,
    resume: bool = True,
    changed_code: bool = False,
) -> Run:
    """Train all configurations of a search: `Sweep(dataset, search, model_fn, ...).launch(wait, progress, ...)`.

    The options are those of `Sweep` and of `Sweep.launch`.
    """
    sweep = Sweep(
        dataset,
        search,
        model_fn,
        loss_fn=loss_fn,
        train_fn=train_fn,
        input_fn=input_fn,
        eval_fn=eval_fn,
        transform_fn=transform_fn,
        share=share,
        epochs=epochs,
        metric=metric,
        mode=mode,
        seed=seed,
        framework=framework,
        cluster=cluster,
        repo=repo,
        name=name,
        rule=rule,
        visits=visits,
        unit_limit=unit_limit,
        pack=pack,
        numerics=numerics,
        sinks=sinks,
        base=base,
    )
    return sweep.launch(wait, progress, resume, changed_code)


def changed_code_error(run: str, changes: Sequence[str]) -> ConflictError:
    return ConflictError(
        f"The code of run {run} has changed since it was trained: {'; '.join(changes)}.",
        hint="Finished units were trained with the old code. Undo the change, or go on with the new code: "
        f"regatta resume {run} --changed-code, or changed_code=True in Python.\nTo train all of it with the new code, "
        "launch the sweep again under another name.",
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # the package has another name, such as tensorflow-cpu
        return str(getattr(sys.modules[package], "__version__", "unknown"))


def _base_ids(base: str | Version | Mapping[str, str | Version] | None, repo: str | Path | None) -> dict[str, str]:
    """The ids of base versions by the value `model` of configurations; of a single one under an empty text."""
    if base is None:
        return {}
    from regatta.repo import Repo

    named = base if isinstance(base, Mapping) else {"": base}
    with Repo.open(repo) as opened:
        return {str(model): opened.resolve(version).id for model, version in named.items()}


@contextmanager
def _display(progress: bool) -> Iterator[tuple[Listener, ...]]:
    if not progress:
        yield ()
        return
    from regatta.cli.output.live_display import open_display

    with open_display() as listener:
        yield (listener,)


def _check_framework(name: object) -> None:
    if name != "auto" and name not in NAMES:
        raise UsageError(f"There is no framework {brief(name)}.", candidates=nearest(str(name), ("auto", *NAMES)))


def _check_pack(pack: object, cluster: Cluster | None) -> None:
    valid = isinstance(pack, bool) or pack is None or is_whole(pack)
    check_argument("pack", pack, valid, "True, False, the most members of a pack, or None for where it pays")
    if pack and cluster is not None and (cluster.kind == "ray" or (cluster.group or 1) > 1):
        where = "on Ray" if cluster.kind == "ray" else "by groups of workers"
        raise UsageError(f"Packs are not trained {where}.", hint="Leave pack= out, or use Cluster.local(workers=...).")


def _check_recipe(recipe: Recipe) -> None:
    if recipe.loss_fn is not None and recipe.train_fn is not None:
        raise UsageError("Give either loss_fn or train_fn, not both.", hint=LOSS_OR_TRAIN_FN)
    if recipe.loss_fn is None and recipe.train_fn is None and not may_have_own_loss(recipe.framework):
        raise UsageError(
            "Give either loss_fn or train_fn.",
            hint=f'{LOSS_OR_TRAIN_FN} Compiled Keras models need neither: say framework="keras".',
        )
    for name, arguments in _FUNCTION_ARGUMENTS.items():
        function = getattr(recipe, name)
        if function is not None:
            check_signature(name, function, arguments, _OPTIONAL_ARGUMENTS.get(name, ()))
