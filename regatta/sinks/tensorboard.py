"""TensorBoard event files: a folder for each configuration, with its hyperparameters and a scalar per metric and epoch.

The files are written with TensorBoard's own record writer and messages; TensorFlow is neither needed nor imported. A
file is opened and closed for each report, so a thousand configurations do not hold a thousand files open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regatta.errors import UsageError
from regatta.journal.journal_file import Record
from regatta.journal.run_record import ConfigRecord, RunRecord
from regatta.paths import TENSORBOARD
from regatta.sinks.base import require_package


def tensorboard(folder: str | Path | None = None) -> TensorBoard:
    """Event files under `folder/<run>`, or in `tensorboard` of the run's folder; `tensorboard --logdir` shows them."""
    return TensorBoard(None if folder is None else Path(folder).expanduser().absolute())


@dataclass(frozen=True)
class TensorBoard:
    folder: Path | None = None

    def check(self) -> None:
        require_package("tensorboard", "tensorboard", "The sink tensorboard")
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"The sink cannot write under {str(self.folder)!r}: it is a file.")

    def open(self, folder: Path) -> _TensorBoardWriter:
        return _TensorBoardWriter(folder / TENSORBOARD if self.folder is None else self.folder / folder.name)


class _TensorBoardWriter:
    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._folder = folder
        self._begun: set[Path] = set()
        self._ended: set[str] = set()
        self._record: RunRecord | None = None
        self._name = ""

    def write(self, record: RunRecord, line: Record) -> None:
        self._record = record
        if line["event"] == "run":
            # The same name for each export of a run, so that the files are replaced.
            self._name = f"events.out.tfevents.{int(record.started):010d}.regatta"
        elif line["event"] == "report":
            config = record.configs[line["config"]]
            metrics = config.reports[line["epoch"]]
            self._begin(config, line["time"])
            self._add(config.id, line["time"], line["epoch"], [_scalar(n, float(v)) for n, v in metrics.items()])
            if config.status != "training":
                self._end(config, line["time"])
        elif line["event"] == "failed":
            config = record.configs[line["config"]]
            self._begin(config, line["time"])
            self._end(config, line["time"])

    def close(self) -> None:
        """Write the list of all hyperparameters and metrics, which is known only now."""
        record = self._record
        if record is None or not record.header:
            return
        for config in record.configs.values():
            if config.reports:
                self._end(config, record.now)
        self._add("", record.started, 0, [_experiment(record)])

    def _begin(self, config: ConfigRecord, time: float) -> None:
        if self._folder / config.id not in self._begun:
            start = min((unit.start for unit in config.units), default=time)
            self._add(config.id, start, 0, [_session_start(config, start)])

    def _end(self, config: ConfigRecord, time: float) -> None:
        if config.id not in self._ended:
            self._ended.add(config.id)
            self._add(config.id, time, 0, [_session_end(config, time)])

    def _add(self, config: str, time: float, step: int, values: Iterable[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = self._folder / config
        first = folder not in self._begun
        if first:
            self._begun.add(folder)
            folder.mkdir(parents=True, exist_ok=True)
        with (folder / self._name).open("wb" if first else "ab") as file:
            writer = RecordWriter(file)
            if first:
                writer.write(Event(wall_time=time, file_version="brain.Event:2").SerializeToString())
            event = Event(wall_time=time, step=step, summary=Summary(value=values))
            writer.write(event.SerializeToString())


def _scalar(name: str, value: float) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary.Value(tag=name, simple_value=value)


def _session_start(config: ConfigRecord, time: float) -> Any:
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    start = plugin_data_pb2.SessionStartInfo(group_name=config.id, start_time_secs=time)
    for name, value in config.values.items():
        slot = start.hparams[name]
        if isinstance(value, bool):
            slot.bool_value = value
        elif isinstance(value, int | float):
            slot.number_value = value
        else:
            slot.string_value = str(value)
    return _plugin_value(metadata.SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=start))


def _session_end(config: ConfigRecord, time: float) -> Any:
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    status = api_pb2.STATUS_FAILURE if config.error is not None else api_pb2.STATUS_SUCCESS
    end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time)
    return _plugin_value(metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=end))


def _experiment(record: RunRecord) -> Any:
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    configs = record.configs.values()
    values: dict[str, list[Any]] = {}
    for config in configs:
        for name, value in config.values.items():
            values.setdefault(name, []).append(value)
    metrics = dict.fromkeys([record.metric, *(m for c in configs for report in c.reports.values() for m in report)])
    experiment = api_pb2.Experiment(
        name=record.name,
        time_created_secs=record.started,
        hparam_infos=[api_pb2.HParamInfo(name=name, type=_kind(found)) for name, found in values.items()],
        metric_infos=[api_pb2.MetricInfo(name=api_pb2.MetricName(tag=name)) for name in metrics],
    )
    return _plugin_value(metadata.EXPERIMENT_TAG, plugin_data_pb2.HParamsPluginData(experiment=experiment))


def _kind(values: list[Any]) -> Any:
    from tensorboard.plugins.hparams import api_pb2

    if all(isinstance(value, bool) for value in values):
        return api_pb2.DATA_TYPE_BOOL
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return api_pb2.DATA_TYPE_FLOAT64 if numbers else api_pb2.DATA_TYPE_STRING


def _plugin_value(tag: str, content: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata

    return Summary.Value(tag=tag, metadata=metadata.create_summary_metadata(content), tensor=metadata.NULL_TENSOR)
