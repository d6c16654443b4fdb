"""MLflow: a run for the sweep, and inside it a run for each configuration with its parameters and metrics.

All calls use `MlflowClient`, which has no global state, so the active run of a user is not touched. Runs are found
again by their tags, so a second export of a journal changes nothing.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regatta.errors import NotFoundError, UsageError
from regatta.journal.journal_file import Record
from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.paths import MLFLOW_ARTIFACTS, MLFLOW_DATABASE
from regatta.sinks.base import require_package

PARENT = "mlflow.parentRunId"  # the tag by which MLflow nests runs
RUN, CONFIG, STATUS = "regatta.run", "regatta.config", "regatta.status"
MAX_VALUE_LENGTH = 500  # characters of a parameter that every version of MLflow accepts
MAX_PARAMETERS = 100  # in one call that every version of MLflow accepts
STATES = {"done": "FINISHED", "stopped": "FINISHED", "failed": "FAILED"}
CHATTY = ("mlflow.store.db.utils", "alembic.runtime.migration")


def mlflow(uri: str | None = None, experiment: str = "regatta") -> MLflow:
    """Runs in the tracking store at `uri`: a database (`sqlite:///runs.db`), a server (`http://...`), or a folder.

    The default is MLFLOW_TRACKING_URI, as for MLflow itself, or else a database `mlflow.db` in the folder of the run.
    """
    return MLflow(uri or os.environ.get("MLFLOW_TRACKING_URI"), experiment)


@dataclass(frozen=True)
class MLflow:
    uri: str | None = None
    experiment: str = "regatta"

    def check(self) -> None:
        require_package("mlflow", "mlflow", "The sink mlflow")
        if self.uri is None or self.uri.startswith("sqlite:"):
            for package in ("sqlalchemy", "alembic"):
                require_package(package, "mlflow", "MLflow with a database")
        elif "://" not in self.uri or self.uri.startswith("file:"):
            self._try_folder(self.uri)

    def open(self, folder: Path) -> _MLflowWriter:
        uri = self.uri or f"sqlite:///{(folder / MLFLOW_DATABASE).absolute()}"
        with _quiet_loggers():
            client = _client(uri)
            # Without a server, MLflow would put artifacts into the working folder.
            artifacts = (folder / MLFLOW_ARTIFACTS).absolute().as_uri() if self.uri is None else None
            return _MLflowWriter(client, _experiment(client, self.experiment, artifacts), folder, uri)

    def _try_folder(self, uri: str) -> None:
        """Newer versions of MLflow refuse folders by default; find out before training."""
        from mlflow.exceptions import MlflowException

        try:
            _client(uri)
        except MlflowException as error:
            raise UsageError(
                f"MLflow does not accept the tracking URI {uri!r}: {str(error).strip()}",
                hint='Use a database: regatta.sinks.mlflow("sqlite:///mlflow.db").',
            ) from error


class _MLflowWriter:
    def __init__(self, client: Any, experiment: str, folder: Path, place: str) -> None:
        self.place = place
        self._client, self._experiment, self._folder = client, experiment, folder
        self._record: RunRecord | None = None
        self._parent = ""
        self._runs: dict[str, str] = {}  # of configurations

    def write(self, record: RunRecord, line: Record) -> None:
        self._record = record
        if line["event"] == "run":
            self._begin(record)
        elif line["event"] == "report":
            self._report(record, line)
        elif line["event"] == "failed" and line["config"] in record.configs:
            self._end_config(record.configs[line["config"]], line["time"])

    def close(self) -> None:
        record = self._record
        if record is None or not self._parent:
            return
        for config in record.configs.values():
            if config.id in self._runs and config.status not in STATES:
                self._end(self._runs[config.id], record.now, config.status, _mlflow_status(record))
        self._best(record)
        self._end(self._parent, record.now, record.status, _mlflow_status(record))

    def _begin(self, record: RunRecord) -> None:
        header = record.header
        mark = re.sub(r"[^\w.-]", "_", f"{record.header['name']}-{record.started:.6f}")
        found = self._search(f"tags.`{RUN}` = '{mark}'")
        if found:
            self._parent = found[0].info.run_id
            children = self._search(f"tags.`{PARENT}` = '{self._parent}'")
            self._runs = {run.data.tags[CONFIG]: run.info.run_id for run in children if CONFIG in run.data.tags}
            return
        self._parent = self._create(record.name, record.started, {RUN: mark})
        keys = ("metric", "mode", "epochs", "seed", "rule")
        search, dataset = header.get("search", {}), header.get("dataset", {})
        kind = search.get("kind", "") if isinstance(search, Mapping) else search
        values = {key: header.get(key) for key in keys} | {"search": kind, "dataset": dataset.get("name", "")}
        self._parameters(self._parent, values)

    def _report(self, record: RunRecord, line: Record) -> None:
        from mlflow.entities import Metric

        config, epoch = record.configs[line["config"]], line["epoch"]
        run, time = self._run_of(config, line["time"]), _milliseconds(line["time"])
        metrics = {_key(name): float(value) for name, value in config.reports[epoch].items()}
        self._client.log_batch(run, metrics=[Metric(name, value, time, epoch) for name, value in metrics.items()])
        if config.status != "training":
            self._end_config(config, line["time"])

    def _end_config(self, config: ConfigRecord, time: float) -> None:
        self._end(self._run_of(config, time), time, config.status, STATES.get(config.status, "RUNNING"))
        if config.error is not None:
            lines = config.error.strip().splitlines()
            self._client.set_tag(self._runs[config.id], "regatta.error", lines[-1][:MAX_VALUE_LENGTH] if lines else "")

    def _run_of(self, config: ConfigRecord, time: float) -> str:
        if config.id not in self._runs:
            start = min((unit.start for unit in config.units), default=time)
            tags = {PARENT: self._parent, CONFIG: config.id}
            if config.parent is not None:
                tags["regatta.parent"] = config.parent
            self._runs[config.id] = self._create(config.id, start, tags)
            self._parameters(self._runs[config.id], config.values)
        return self._runs[config.id]

    def _best(self, record: RunRecord) -> None:
        """Record the best configuration in the run of the sweep, and its state as an artifact of its own run."""
        from regatta.store.states.state_archive import RunStates

        ranked = record.leaderboard()
        best = ranked[0].best(record.metric, record.mode) if ranked else None
        if best is None or ranked[0].id not in self._runs:
            return
        config, (epoch, value), time = ranked[0].id, best, _milliseconds(record.now)
        self._client.log_metric(self._parent, _key(f"best_{record.metric}"), value, timestamp=time, step=epoch)
        self._client.set_tag(self._parent, "regatta.best", config)
        with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=self._folder) as folder:  # on the disk of the states
            target = Path(folder) / f"{config}-epoch-{epoch}.safetensors"
            try:
                RunStates(self._folder).materialize(config, epoch, target)
            except NotFoundError:
                return  # the journal was copied without its states
            self._client.log_artifact(self._runs[config], str(target), "state")

    def _create(self, name: str, start: float, tags: Mapping[str, str]) -> str:
        run = self._client.create_run(
            self._experiment,
            start_time=_milliseconds(start),
            tags={"mlflow.source.name": "regatta", **tags},
            run_name=name,
        )
        return str(run.info.run_id)

    def _parameters(self, run: str, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        named = {_key(name): str(value)[:MAX_VALUE_LENGTH] for name, value in values.items()}
        params = [Param(name, value) for name, value in named.items()]
        for start in range(0, len(params), MAX_PARAMETERS):
            self._client.log_batch(run, params=params[start : start + MAX_PARAMETERS])

    def _end(self, run: str, time: float, status: str, state: str) -> None:
        self._client.set_tag(run, STATUS, status)
        self._client.set_terminated(run, status=state, end_time=_milliseconds(time))

    def _search(self, wanted: str) -> Sequence[Any]:
        found, token = [], None
        while True:
            page = self._client.search_runs([self._experiment], wanted, max_results=1000, page_token=token)
            found += page
            token = page.token
            if not token:
                return found


def _client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _experiment(client: Any, name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(name, artifact_location=artifacts))
    except MlflowException:
        found = client.get_experiment_by_name(name)  # another run may have created it meanwhile
        if found is None:
            raise
        return str(found.experiment_id)


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Silence the messages of a new database, which would disturb the live display."""
    loggers = [logging.getLogger(name) for name in CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _mlflow_status(record: RunRecord) -> str:
    return {"done": "FINISHED", "failed": "FAILED", "running": "RUNNING"}.get(record.status, "KILLED")


def _milliseconds(time: float) -> int:
    return round(1000 * time)


def _key(name: str) -> str:
    """A name that MLflow accepts: letters, digits, `_ - .`, spaces and slashes between parts."""
    parts = re.sub(r"[^\w.\- /]", "_", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:250] or "_"
