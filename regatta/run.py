"""Run: one execution of a sweep, live or past. It reads the run's folder; `Sweep` trains it."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regatta.configuration import Scalar, check_configuration, config_id
from regatta.errors import CorruptError, NotFoundError, RegattaError, UsageError, nearest
from regatta.journal import trace as unit_trace
from regatta.journal.journal_file import read_lines
from regatta.journal.lock import is_live
from regatta.journal.run_record import ConfigRecord, RunRecord, find_journals
from regatta.paths import FOLDER, JOURNAL, RUN_NAME, RUNS, SWEEP, project_folder
from regatta.paths import repository as repository

if TYPE_CHECKING:
    import pandas as pd

    from regatta.engine.controller.runner import Runner
    from regatta.engine.replay import ReplayReport
    from regatta.journal.analysis import Analysis
    from regatta.sinks import Sink
    from regatta.sweep import Sweep


class Run:
    """One execution of a sweep, live or past. Like a future, it has `done()` and `result()`."""

    def __init__(self, folder: Path, record: RunRecord | None = None) -> None:
        self.folder = folder
        self.name = folder.name
        self.record = record or RunRecord(folder.name)
        self._ended = threading.Event()
        self._ended.set()  # until `begin`
        self._error: BaseException | None = None
        self._halt: Callable[[], None] | None = None

    def begin(self, train: Callable[[], None]) -> None:
        """Train in the background."""

        def body() -> None:
            try:
                train()
            except BaseException as error:  # noqa: BLE001 (`result` raises it)
                self._error = error
            finally:
                self._ended.set()

        self._ended.clear()
        threading.Thread(target=body, name=f"run {self.name}").start()

    def follow(self, record: RunRecord, line: Mapping[str, Any]) -> None:
        self.record = record

    def can_halt(self, runner: Runner) -> None:
        self._halt = runner.interrupt

    def halt(self) -> None:
        """Stop training in this process, once the states of finished units are durable; `go_on` resumes it."""
        if self._halt is not None:
            self._halt()
            self._ended.wait()

    def done(self) -> bool:
        return self._ended.is_set()

    def result(self, timeout: float | None = None) -> Run:
        """Wait for the end. Raises the error that ended the run early, or TimeoutError. Ctrl-C halts the run."""
        try:
            ended = self._ended.wait(timeout)
        except KeyboardInterrupt:
            self.halt()
            raise
        if not ended:
            raise TimeoutError(f"Run {self.name} is not done after {timeout} seconds.")
        if self._error is not None:
            raise self._error
        return self

    @property
    def best(self) -> dict[str, Any] | None:
        """The configuration with the best value of the metric, the epoch of that value, and its version."""
        self.result()
        metric = self.record.metric
        for config in self.record.leaderboard():
            found = config.best(metric, self.record.mode)
            if found is not None:
                known = {"config": config.id, "values": config.values, metric: found[1], "epoch": found[0]}
                return {**known, "version": self.version(config.id)}
        return None

    def version(self, config: str) -> str | None:
        """The version of a configuration (its id) in the repository; None while there is none."""
        from regatta.repo.commit_run import version_of

        return version_of(self.folder, config)

    def leave_versions(self, networks: Mapping[str, Any] | None = None) -> str | None:
        """Make a version of every configuration, with all new epochs. Returns why that failed, or None."""
        from regatta.repo import Repo
        from regatta.repo.commit_run import commit_run

        if not (self.folder / JOURNAL).exists() or not self.record.units:
            return None
        try:
            with Repo.at(self.folder.parents[1]) as repo:
                commit_run(repo, self.folder, record=self.record, networks=networks)
        except (RegattaError, OSError) as error:
            return str(error)
        return None

    def table(self) -> list[dict[str, Any]]:
        """A row per configuration, best first."""
        return [self._row(config) for config in self.record.leaderboard()]

    def to_pandas(self) -> pd.DataFrame:
        """The table as a DataFrame, with a column per hyperparameter."""
        from regatta.repo.catalog.records import data_frame

        return data_frame([{**row.pop("values"), **row} for row in self.table()])

    def trace(self) -> list[dict[str, Any]]:
        """A row per unit: kind, config, epoch, partition, worker, start, end, hop_bytes, hop_seconds."""
        return unit_trace.rows(self.record)

    def chrome_trace(self) -> dict[str, Any]:
        """The trace in the Trace Event Format, which Perfetto and chrome://tracing open."""
        return unit_trace.chrome_trace(self.record)

    def efficiency(self) -> unit_trace.Efficiency:
        """How long the run took, compared with the least time that its units allow on its workers."""
        return unit_trace.efficiency(self.record)

    def export(self, sink: str | Sink) -> str:
        """Send all reports to a sink, such as "csv:results.csv" or regatta.sinks.mlflow(...). Returns the place."""
        from regatta.sinks import export

        return export(self.folder, sink)

    def speeds(self) -> dict[str, float]:
        """The speed of each worker relative to the mean: `proportions` for a data set on the same workers."""
        return unit_trace.speeds(self.record)

    def weights(self, config: str | Mapping[str, Scalar], epoch: int | None = None) -> dict[str, Any]:
        """The weights of a configuration (its id, or its values) after an epoch, or the newest, as {name: array}."""
        from regatta.store.states.state_archive import RunStates

        found = self.find(config)
        digests = {Path(unit.state).name: unit.hash for unit in found.units if unit.state and unit.hash}
        try:
            return RunStates(self.folder).weights(found.id, epoch, digests)
        except NotFoundError:
            storage = self.record.header.get("cluster", {}).get("storage")
            if storage is None:
                raise
            return self._stored_weights(found, epoch, storage)

    def _stored_weights(self, config: ConfigRecord, epoch: int | None, storage: str) -> dict[str, Any]:
        """The same for a run whose states are below a URL."""
        from regatta.engine.workers.ray.storage import StateStorage
        from regatta.store.states.state_files import read_weights

        trained = (unit for unit in config.units if unit.kind == "train" and epoch in (None, unit.epoch))
        states = [(unit.state, unit.hash) for unit in trained if unit.state is not None]
        if not states:
            which = "no state" if epoch is None else f"no state of epoch {epoch}"
            raise NotFoundError(f"Configuration {config.id} has {which} in {storage}.")
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / "state.safetensors"
            state, digest = states[-1]
            StateStorage(self.folder, storage).fetch(Path(state), local)
            return read_weights(local, digest)

    def find(self, config: str | Mapping[str, Scalar]) -> ConfigRecord:
        """The configuration with that id, prefix of an id, or values."""
        wanted = config if isinstance(config, str) else config_id(check_configuration(config))
        found = [c for c in self.record.configs.values() if c.id.startswith(wanted)]
        if len(found) != 1:
            raise NotFoundError(
                f"Run {self.name} has {len(found)} configurations whose id starts with {wanted!r}."
                if found
                else f"Run {self.name} has no configuration {config!r}.",
                candidates=nearest(wanted, self.record.configs),
                hint=f"`regatta show {self.name}` lists them.",
            )
        return found[0]

    def stop(self, config: str | Mapping[str, Scalar]) -> dict[str, Any]:
        """Give a configuration no more units, in whichever process the run is trained. Returns what was done."""
        return self._ask("stop", config)

    def extend(self, config: str | Mapping[str, Scalar], epochs: int) -> dict[str, Any]:
        """Train a configuration for more epochs, also when it is done."""
        return self._ask("extend", config, epochs=epochs)

    def clone(
        self,
        config: str | Mapping[str, Scalar],
        changes: Mapping[str, Scalar],
        *,
        warm: bool = True,
        epochs: int | None = None,
    ) -> dict[str, Any]:
        """Also train the configuration with some values changed: from its last epoch's state, or from scratch."""
        return self._ask("clone", config, values=dict(changes), warm=warm, epochs=epochs)

    def resume(self, config: str | Mapping[str, Scalar]) -> dict[str, Any]:
        """Resume a configuration that was stopped."""
        return self._ask("resume", config)

    def retry(self, config: str | Mapping[str, Scalar] | None = None) -> list[dict[str, Any]]:
        """Train a configuration that failed again, from its last good state; by default all that failed.

        Returns what was done, for each of them. Those that wait already to be tried again are left out.
        """
        from regatta.engine.controller.requests import expected_record

        if config is not None:
            return [self._ask("retry", config)]
        record = expected_record(self.folder)
        return [self._ask("retry", found.id) for found in record.configs.values() if found.status == "failed"]

    def go_on(
        self, sweep: Sweep | None = None, *, wait: bool = True, progress: bool = True, changed_code: bool = False
    ) -> Run:
        """Resume, in this process, a run that was interrupted or that has new requests.

        It executes the sweep that was saved when it began, or the one that is given. If modules that its functions
        import have changed since, it goes on only with `changed_code=True`.
        """
        from regatta.engine.controller.control_server import count_waiting

        if self.record.status == "done" and not count_waiting(self.folder):
            raise UsageError(f"Run {self.name} is done.", hint="extend and clone give it more to do.")
        sweep = sweep or self.sweep()
        if sweep.cluster.kind != "ray":  # otherwise the data may be on other machines
            sweep.dataset.check_present()
        return sweep.train(self, wait, progress, changed_code)

    def join(
        self,
        device: str | None = None,
        joined: Callable[[str], None] = lambda worker: None,
        holds: Sequence[str] | None = None,
    ) -> None:
        """Make this process one more worker of the run, which another process of this machine trains, until it ends.

        It trains on the partitions that it can open, or on those that it `holds`: paths, names of files, or numbers.
        """
        from regatta.engine.workers.joining import join

        join(self.folder, device, None if holds is None else list(holds), joined)

    def _ask(self, verb: str, config: str | Mapping[str, Scalar], **more: Any) -> dict[str, Any]:
        from regatta.engine.controller.control_server import ask

        wanted = config if isinstance(config, str) else config_id(check_configuration(config))
        answer = ask(self.folder, verb, wanted, **more)
        if not answer["done"] and not answer.get("waits"):
            raise UsageError(answer["text"])
        return answer

    def verdicts(self) -> dict[str, str | None]:
        """The rule of `search.keeping` that each configuration broke, None where it broke none so far."""
        from regatta.search.base import Goal, Report
        from regatta.search.keep import judge, rules_of

        header = self.record.header
        goal = Goal(self.record.metric, "max" if self.record.mode == "max" else "min", header["epochs"], header["seed"])
        rules = rules_of(header["search"])
        lines = [line for line, _ in read_lines(self.folder / JOURNAL) if line["event"] == "report"] if rules else []
        values = {config.id: config.values for config in self.record.configs.values()}
        reports = (
            Report(
                line["config"], values[line["config"]], line["epoch"],
                {name: float(value) for name, value in line["metrics"].items()}, iterations=line.get("iterations", 0),
            )
            for line in lines
        )  # fmt: skip
        found = judge(rules, goal, reports)
        return {config: None if found.get(config) is None else str(found[config]) for config in values}

    def what_if(self, workers: Sequence[int]) -> list[dict[str, Any]]:
        """The time that this run, with the unit times that it measured, would take on other numbers of workers."""
        from regatta.plan.strategy.what_if import what_if

        work = unit_trace.workload(self.record)
        if not work.epochs:
            raise UsageError(f"No model of the run {self.name} has finished an epoch, so no times are known.")
        return what_if(work, workers, str(self.record.header["rule"]), int(self.record.header["seed"]))

    def analyze(self) -> Analysis:
        """The time that the run took, or took so far, compared with its plan."""
        from regatta.journal.analysis import analyze

        return analyze(self.record)

    def replay(self) -> ReplayReport:
        """Train it all again in the same order and compare every state, bit for bit."""
        from regatta.engine.module_code import read_code
        from regatta.engine.replay import replay

        return replay(self.sweep(), self.record, read_code(self.folder))

    def sweep(self) -> Sweep:
        """The sweep that this run executes, as saved when it began. Only for your own runs: a pickle is code."""
        path = self.folder / SWEEP
        if not path.is_file():
            raise NotFoundError(f"Run {self.name} came without its sweep, so it can be read but not trained.")
        from regatta.journal.unpickle import unpickle

        project = project_folder(self.folder.absolute().parents[1])
        folder = self.record.header.get("path")  # the sweep's functions import modules from here
        if isinstance(folder, str):
            folder = str(project / folder)
            if os.path.isdir(folder) and folder not in sys.path:
                sys.path.append(folder)
        try:
            sweep: Sweep = unpickle(path.read_bytes())
        except ModuleNotFoundError as error:
            raise UsageError(
                f"The functions of run {self.name} need the module {error.name!r}, which is not found from here.",
                hint="Go to the folder from which it was launched, or put that module's folder on PYTHONPATH.",
            ) from error
        sweep.dataset = sweep.dataset.below(project)
        return sweep

    def __repr__(self) -> str:
        done, wanted = self.record.progress() if self.record.header else (0, 0)
        return f"<Run {self.name}: {self.record.status}, {done} of {wanted} units, {len(self.record.configs)} models>"

    def _repr_html_(self) -> str:
        from regatta.web.notebook_table import table_html

        return table_html(self.name, self.record)

    def _row(self, config: ConfigRecord) -> dict[str, Any]:
        metric = self.record.metric
        best, series = config.best(metric, self.record.mode), config.series(metric)
        return {
            "config": config.id,
            "values": dict(config.values),
            "status": config.status,
            "epoch": config.epoch,
            metric: best[1] if best else None,
            "best_epoch": best[0] if best else None,
            "last": series[-1] if series else None,
            "seconds": sum(unit.seconds for unit in config.units),
            "parent": config.parent,
            **vars(self.record.account(config.id)),
            "error": config.error,
        }


def open_run(name: str, repo: str | Path | None = None) -> Run:
    """A run of the repository, by its name."""
    runs = repository(repo) / RUNS
    path = runs / name / JOURNAL
    if not RUN_NAME.fullmatch(name) or not path.is_file():
        known = [journal.parent.name for journal in find_journals(runs)]
        hint = "`regatta runs` lists them." if known else "It has no runs yet."
        inner = runs.parent / FOLDER
        if not known and inner.is_dir():
            hint = f"The repository of that folder is {inner}."
        raise NotFoundError(f"There is no run {name!r} in {runs}.", candidates=nearest(name, known), hint=hint)
    return read_run(path.parent)


def read_run(folder: Path) -> Run:
    return Run(folder, _seen_from_outside(RunRecord.read(folder / JOURNAL), folder))


def _seen_from_outside(record: RunRecord, folder: Path) -> RunRecord:
    """A journal without an end belongs to a run that goes on, or to one whose controller was killed."""
    if record.status == "running" and not is_live(folder):
        record.interrupt("its controller is gone")
    return record


def list_runs(repo: str | Path | None = None) -> list[RunRecord]:
    """The records of all runs of the repository, oldest first. A run with a damaged journal counts as failed."""
    records = []
    for path in find_journals(repository(repo) / RUNS):
        if not path.stat().st_size:
            continue
        try:
            records.append(_seen_from_outside(RunRecord.read(path), path.parent))
        except CorruptError as error:
            header = {"metric": "-", "mode": "min", "dataset": {"train": [], "eval": []}}
            failed = RunRecord(path.parent.name, header, "failed", str(error), started=path.stat().st_mtime)
            records.append(failed)
    return sorted(records, key=lambda record: record.started)
