"""TensorBoard's own readers find in the event files what the journal has."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from fake_run import FakeRun
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, metadata

from regatta.errors import UsageError
from regatta.journal.run_record import RunRecord
from regatta.sinks import export, tensorboard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return FakeRun(fails=(3,), nans=(5,)).write(tmp_path / "runs").parent


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_scalars_have_every_epoch_of_every_metric(folder: Path, made: RunRecord) -> None:
    place = Path(export(folder, "tensorboard"))
    assert place == folder / "tensorboard"
    for config in made.configs.values():
        events = read(place / config.id)
        assert events.Tags()["scalars"] == ["loss", "accuracy"]
        found = {event.step: event.value for event in events.Scalars("loss")}
        assert sorted(found) == sorted(config.reports)
        for epoch, value in found.items():
            wanted = config.reports[epoch]["loss"]
            assert value == pytest.approx(wanted, rel=1e-6) or (math.isnan(value) and math.isnan(wanted))
        assert events.Scalars("loss")[0].wall_time > made.started


def test_hyperparameters_and_status_are_written(folder: Path, made: RunRecord) -> None:
    place = Path(export(folder, "tensorboard"))
    for config in made.configs.values():
        content = read(place / config.id).PluginTagToContent("hparams")
        start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
        assert {name: value.number_value for name, value in start.hparams.items()} == config.values
        end = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG])
        assert end.status == (api_pb2.STATUS_FAILURE if config.error else api_pb2.STATUS_SUCCESS)
    content = read(place).PluginTagToContent("hparams")
    experiment = metadata.parse_experiment_plugin_data(content[metadata.EXPERIMENT_TAG])
    assert [info.name for info in experiment.hparam_infos] == ["hidden", "lr", "batch_size", "id"]
    assert [info.name.tag for info in experiment.metric_infos] == ["loss", "accuracy"]


def test_strings_booleans_and_none_keep_their_types(tmp_path: Path) -> None:
    made = FakeRun(configs=2)
    for line in made.records:
        if line["event"] == "config":
            line["values"] |= {"word": "a</script>", "truth": True, "nothing": None}
    place = Path(export(made.write(tmp_path / "runs").parent, tensorboard(tmp_path / "logs")))
    assert place == tmp_path / "logs" / "made"
    content = read(next(path for path in place.iterdir() if path.is_dir())).PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    assert start.hparams["word"].string_value == "a</script>"
    assert start.hparams["truth"].bool_value is True
    assert start.hparams["nothing"].string_value == "None"


def test_exporting_a_run_again_replaces_its_files(folder: Path) -> None:
    place = Path(export(folder, "tensorboard"))
    before = {path: path.read_bytes() for path in place.rglob("events*")}
    export(folder, "tensorboard")
    assert {path: path.read_bytes() for path in place.rglob("events*")} == before
    assert len(before) == 9


def test_tensorflow_is_not_imported(folder: Path) -> None:
    code = (
        "import sys, pathlib, regatta.sinks\n"
        f"regatta.sinks.export(pathlib.Path({str(folder)!r}), 'tensorboard')\n"
        "assert 'tensorboard' in sys.modules and 'tensorflow' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_in_place_of_the_folder_is_refused_early(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="it is a file"):
        tensorboard(tmp_path / "file").check()
