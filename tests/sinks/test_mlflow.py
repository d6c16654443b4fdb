"""MLflow's own client finds the content of the journal in its store; sending twice stores it once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun
from mlflow import MlflowClient

from regatta.errors import UsageError
from regatta.journal.run_record import RunRecord
from regatta.sinks import export, following, mlflow
from regatta.store.states.state_files import StateFolder

# MLflow itself uses what SQLAlchemy has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
STRANGE = "../a</script>:b"


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MlflowClient, str, RunRecord]]:
    """A made run, sent twice to one database: making a database takes a while."""
    folder = tmp_path_factory.mktemp("repo")
    made = FakeRun(fails=(3,), nans=(5,))
    for line in made.records:
        if line["event"] == "config":
            line["values"][STRANGE] = "x" * 9000
    home = made.write(folder / "runs").parent
    record = made.record()
    best = record.leaderboard()[0]
    state = StateFolder(home / "states").path(best.id, best.epoch, 4)
    state.parent.mkdir(parents=True)
    state.write_bytes(b"the best state")
    uri = export(home, "mlflow")
    assert export(home, "mlflow") == uri == f"sqlite:///{home / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    yield client, client.get_experiment_by_name("regatta").experiment_id, record
    client._tracking_client.store._dispose_engine()


def runs(sent: tuple[MlflowClient, str, RunRecord]) -> tuple[Any, dict[str, Any]]:
    """The run of the sweep, and those of its configurations by id."""
    client, experiment, _ = sent
    found = client.search_runs([experiment])
    children = [run for run in found if "mlflow.parentRunId" in run.data.tags]
    (parent,) = [run for run in found if run not in children]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert len(children) == 8
    return parent, {run.data.tags["regatta.config"]: run for run in children}


def test_the_sweep_is_an_mlflow_run_with_its_best_configuration(sent: tuple[MlflowClient, str, RunRecord]) -> None:
    parent, _ = runs(sent)
    record = sent[2]
    best = record.leaderboard()[0]
    assert parent.info.run_name == "made"
    assert parent.info.status == "FINISHED"
    assert parent.info.start_time == round(1000 * record.started)
    assert parent.data.params | {"metric": "loss", "mode": "min", "epochs": "3", "seed": "0"} == parent.data.params
    assert parent.data.tags["regatta.best"] == best.id
    assert parent.data.metrics["best_loss"] == best.best("loss", "min")[1]  # type: ignore[index]


def test_each_configuration_is_a_nested_mlflow_run(sent: tuple[MlflowClient, str, RunRecord]) -> None:
    client, _, record = sent
    _, children = runs(sent)
    for config in record.configs.values():
        run = children[config.id]
        assert run.data.params["lr"] == str(config.values["lr"])
        assert run.info.status == ("FAILED" if config.error else "FINISHED")
        history = client.get_metric_history(run.info.run_id, "loss")
        assert sorted(m.step for m in history) == sorted(config.reports)  # once each, though it was sent twice
        for metric in history:
            wanted = config.reports[metric.step]["loss"]
            assert metric.value == wanted or (math.isnan(metric.value) and math.isnan(wanted))
            assert metric.timestamp > 1000 * record.started
    failed = next(config.id for config in record.configs.values() if config.error)
    assert children[failed].data.tags["regatta.error"] == "ValueError: bad luck"


def test_names_that_mlflow_refuses_are_replaced(sent: tuple[MlflowClient, str, RunRecord]) -> None:
    _, children = runs(sent)
    for run in children.values():
        (name,) = set(run.data.params) - {"hidden", "lr", "batch_size", "id"}
        assert name == "a_/script__b"
        assert run.data.params[name] == "x" * 500


def test_the_best_models_state_is_an_artifact(sent: tuple[MlflowClient, str, RunRecord], tmp_path: Path) -> None:
    client, _, record = sent
    _, children = runs(sent)
    best = record.leaderboard()[0].id
    listed = {id: [a.path for a in client.list_artifacts(run.info.run_id, "state")] for id, run in children.items()}
    assert {id for id, paths in listed.items() if paths} == {best}
    path = client.download_artifacts(children[best].info.run_id, listed[best][0], str(tmp_path))
    assert Path(path).read_bytes() == b"the best state"


def test_a_folder_is_used_if_mlflow_allows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = FakeRun(configs=2, epochs=1).write(tmp_path / "runs").parent
    uri = (tmp_path / "mlruns").as_uri()
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(UsageError, match="sqlite:///mlflow"):
        export(home, mlflow(uri))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    export(home, mlflow(uri, experiment="mine"))
    client = MlflowClient(tracking_uri=uri)
    assert len(client.search_runs([client.get_experiment_by_name("mine").experiment_id])) == 3


def test_without_a_uri_the_setting_of_mlflow_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere:5000")
    assert mlflow().uri == "http://elsewhere:5000"
    assert mlflow("sqlite:///here.db").uri == "sqlite:///here.db"


def test_an_unreachable_server_gives_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    made = FakeRun(configs=2, epochs=1)
    folder = made.write(tmp_path / "runs").parent
    with following([mlflow("http://127.0.0.1:9")], folder) as (listener,):
        record = made.record()
        listener(record, made.records[0])
    assert len(record.notes) == 1
    assert "the sink mlflow failed with MlflowException" in record.notes[0][1]
    assert RunRecord.read(folder / "journal.jsonl").notes == record.notes
