"""Data of version 0.1.0 can be read, resumed and replayed, and the public interface is unchanged.

The fixture in tests/fixtures/v0 was made with the code of commit 6c98aad, see its README.md.
Only the public API and the command line are used here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import observed as o
import pytest

import regatta

RULES = (
    "auto", "longest", "match", "backlog", "lrm", "lpt", "randomized", "rotation", "placed",
    "vector", "planned",
)  # fmt: skip
EVENTS = {
    "run", "resume", "worker", "config", "pilot", "packs", "groups", "plan", "start", "unit", "report", "stop",
    "request", "failed", "note", "end",
}  # fmt: skip
JOURNALS = o.journal_names()
PICKLES = [path.stem for path in o.pickles()]
MADE_WITH = o.read_expected("environment")


@pytest.fixture(scope="module", autouse=True)
def sweeps() -> Iterator[None]:
    """Make the modules importable that the fixture's runs refer to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(o.HERE)
        yield


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the fixture's project, which tests only read."""
    return o.unpack(tmp_path_factory.mktemp("read"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the fixture's project, in which tests resume runs."""
    return o.unpack(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def documents(project: Path) -> dict[str, Any]:
    return o.clean(o.documents(project, o.READING))


def same_versions(*names: str) -> bool:
    """Whether the fixture was made with the same versions of these."""
    now = o.environment()
    return all(now[name] == MADE_WITH[name] for name in names)


def journal_of(project: Path, run: str) -> Path:
    return project / ".regatta" / "runs" / run / "journal.jsonl"


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", o.READING)
def test_a_command_prints_the_same_document(documents: dict[str, Any], name: str) -> None:
    assert o.differences(o.read_corrected("commands", name), documents[name]) == []


def test_reading_changes_nothing(project: Path, documents: dict[str, Any], tmp_path: Path) -> None:
    assert contents(project) == contents(o.unpack(tmp_path))


def contents(project: Path) -> dict[str, str]:
    """Hashes of all files except locks and SQLite files, which readers may change."""
    files = [path for path in (project / ".regatta").rglob("*") if path.is_file() and path.suffix != ".lock"]
    places = [path for path in files if "sqlite" not in path.name]
    return {str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest() for path in places}


def test_all_weights_are_the_same(project: Path) -> None:
    assert o.differences(o.read_expected("weights"), o.weights(project)) == []


def test_the_exported_csv_is_the_same(project: Path) -> None:
    assert o.exported(project) == o.read_expected("export")["csv"]


def test_documents_keep_their_keys(tmp_path: Path) -> None:
    """Documents whose values vary, and those of commands that write."""
    copy = o.unpack(tmp_path)
    for kind, commands in (("reading", o.SHAPES), ("writing", o.WRITING)):
        expected, found = o.read_expected("shapes")[kind], o.documents(copy, commands)
        assert o.differences(expected, {name: o.shape(each) for name, each in found.items()}, more=True) == []


def test_exit_codes(project: Path, tmp_path: Path) -> None:
    expected = o.read_expected("exit_codes")
    assert o.exit_codes(project, o.CODES, o.names_in(project)) == expected["here"]
    assert o.exit_codes(tmp_path, o.NOWHERE) == expected["nowhere"]


def test_damage_is_found(project: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(project, tmp_path / "project")
    pack = max((copy / ".regatta" / "store" / "packs").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(content)
    found = o.document(copy, "fsck", "--depth", "checksums")
    assert found["code"] == 1 and not found["document"]["clean"]


# -- journals --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def journals_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return o.lay_out(tmp_path_factory.mktemp("journals"))


def test_the_journals_have_every_kind_of_record() -> None:
    lines = [line for name in JOURNALS for line in o.json_lines(o.HERE / "journals" / f"{name}.jsonl")]
    assert {line["event"] for line in lines} == EVENTS


@pytest.mark.parametrize("name", JOURNALS)
def test_a_journal_gives_the_same_run(journals_folder: Path, name: str) -> None:
    seen = o.seen_run(journals_folder, name)
    if o.tried_groups(journal_of(journals_folder, name)):
        seen, _ = o.without_time_of_groups(seen)
    assert o.differences(o.read_corrected("journals", name), o.clean(seen)) == []


@pytest.mark.parametrize("name", JOURNALS)
def test_workers_are_idle_only_while_they_are_present(journals_folder: Path, name: str) -> None:
    """The corrected figures, as the journal's own lines give them at each moment."""
    seen = o.seen_run(journals_folder, name)
    busy, present, wall = o.worker_seconds(journal_of(journals_folder, name))
    used, efficiency = seen["show"]["document"]["resources"], seen["efficiency"]
    assert used["train"] + used["eval"] + used["pilot"] == pytest.approx(busy, rel=1e-6)
    assert used["idle"] == pytest.approx(present - busy, abs=1e-5)
    assert used["wall"] == pytest.approx(wall) == efficiency["makespan"]
    assert efficiency["utilisation"] == pytest.approx(busy / present, rel=1e-5)


@pytest.mark.parametrize("name", JOURNALS)
def test_the_trace_is_that_of_the_journal(journals_folder: Path, name: str) -> None:
    journal = journal_of(journals_folder, name)
    groups = {line["start"] for line in o.json_lines(journal) if line["event"] == "groups" and "start" in line}
    with contextlib.chdir(journals_folder):
        found = [row for row in regatta.open_run(name).trace() if row["start"] not in groups]
    assert o.differences(o.trace_of(journal), found) == []


@pytest.mark.parametrize("name", o.read_expected("time_of_tried_groups"))
def test_time_of_tried_groups_is_left_out_or_pilot_time(journals_folder: Path, name: str) -> None:
    """The old code does not count `groups` records; later code counts them as pilot time."""
    _, found = o.without_time_of_groups(o.seen_run(journals_folder, name))
    before, tried = o.read_expected("time_of_tried_groups")[name], o.tried_groups(journal_of(journals_folder, name))
    assert before["pilot"] <= found["pilot"] <= before["pilot"] + 2 * tried + o.NEAR
    assert found["wall"] == pytest.approx(before["wall"], rel=o.NEAR)


# -- resume and replay -----------------------------------------------------------------------------


def resume(project: Path, name: str) -> list[dict[str, Any]]:
    """Resume a run and return the records that this wrote, which are checked."""
    before = len(o.json_lines(journal_of(project, name)))
    with contextlib.chdir(project):
        assert o.command("resume", name)[0] == 0
    return written(project, name, before)


def written(project: Path, name: str, before: int = 0) -> list[dict[str, Any]]:
    """The records after the first ones, checked; those of a resumed run have no pilots and no new plan."""
    lines = o.json_lines(journal_of(project, name))[before:]
    assert o.misfits(o.read_expected("records"), lines) == []
    assert lines[-1]["status"] == "done"
    if before:
        assert lines[0]["event"] == "resume"
        assert not any(line["event"] in ("pilot", "packs", "groups") for line in lines)
        assert all(line["reason"] for line in lines if line["event"] == "plan")
    return lines


def test_a_run_is_replayed(trained: Path) -> None:
    found = o.document(trained, "replay", "lines-done")
    assert found["code"] == 0
    assert found["document"] == {
        "version": 1, "run": "lines-done", "ok": True, "units": 36, "equal": 36, "left_out": 0, "differing": [],
    }  # fmt: skip


def test_a_replay_reports_differences(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    journal = journal_of(tmp_path, "by-value" if same_versions("python") else "lines-done")
    first = next(line["hash"] for line in o.json_lines(journal) if line.get("hash"))
    journal.write_text(journal.read_text().replace(first, "0" * 64))
    found = o.document(tmp_path, "replay", journal.parent.name)
    assert (found["code"], len(found["document"]["differing"])) == (1, 1)
    assert found["document"]["differing"][0]["recorded"] == "0" * 64


def test_a_halted_run_is_resumed(trained: Path) -> None:
    """The waiting requests are answered; some states are in the store."""
    lines = resume(trained, "lines-halted")
    assert [line["answer"]["done"] for line in lines if line["event"] == "request"] == [True, True]
    assert len(list((trained / ".regatta/runs/lines-halted/requests").glob("*.answer.json"))) == 2
    assert o.states(journal_of(trained, "lines-halted")) == o.read_expected("runs")["lines-halted"]
    versions = o.document(trained, "list", "--run", "lines-halted", "--all")["document"]["versions"]
    assert len(versions) == 5


def test_a_killed_run_is_resumed_by_launching_its_sweep(trained: Path) -> None:
    """The sweep's identity depends on bytecode: another Python resumes the run by name."""
    import v0_sweeps

    before = len(o.json_lines(journal_of(trained, "lines-killed")))
    with contextlib.chdir(trained):
        if same_versions("python"):
            assert v0_sweeps.killed().launch(progress=False).name == "lines-killed"
        else:
            regatta.open_run("lines-killed").go_on(progress=False)
    written(trained, "lines-killed", before)
    assert o.states(journal_of(trained, "lines-killed")) == o.read_expected("runs")["lines-killed"]


@pytest.mark.skipif(not same_versions("python"), reason="bytecode of another Python")
def test_a_run_with_functions_by_value_is_resumed_and_replayed(trained: Path) -> None:
    resume(trained, "by-value")
    assert o.states(journal_of(trained, "by-value")) == o.read_expected("runs")["by-value"]
    assert o.document(trained, "replay", "by-value")["document"]["ok"]


def test_a_run_of_pytorch_is_replayed(trained: Path) -> None:
    if not same_versions("torch", "cpu"):
        pytest.skip("another PyTorch or processor")
    found = o.document(trained, "replay", "spots-done")
    assert (found["code"], found["document"]["units"], found["document"]["equal"]) == (0, 8, 8)


def test_a_run_with_packs_is_resumed(trained: Path) -> None:
    lines = resume(trained, "spots-packed")
    assert any(line.get("pack") for line in lines if line["event"] == "unit")
    found, expected = o.states(journal_of(trained, "spots-packed")), o.read_expected("runs")["spots-packed"]
    assert found.keys() == expected.keys()
    if same_versions("torch", "cpu"):
        assert found == expected


@pytest.mark.slow
def test_a_run_with_groups_is_resumed(trained: Path) -> None:
    """The journal holds the pilots and the plan: the same groups are formed, without pilots."""
    lines = resume(trained, "spots-fast")
    assert {line["width"] for line in lines if line["event"] == "unit" and line["kind"] == "train"} == {2}


def test_a_new_run_has_the_same_seeds_ids_and_records(tmp_path: Path, project: Path) -> None:
    import v0_sweeps

    with contextlib.chdir(tmp_path):
        v0_sweeps.done().launch(progress=False)
    lines = written(tmp_path, "lines-done")
    assert {line["event"] for line in lines} >= {"run", "config", "pilot", "plan", "worker", "start", "unit", "report"}
    assert o.states(journal_of(tmp_path, "lines-done")) == o.read_expected("runs")["lines-done"]
    before, now = (o.json_lines(journal_of(place, "lines-done"))[0] for place in (project, tmp_path))
    timeless = ("version", "name", "seed", "epochs", "metric", "mode", "rule", "search", "dataset", "cluster")
    assert {name: now[name] for name in timeless} == {name: before[name] for name in timeless}
    if same_versions("python"):
        assert now["sweep"] == before["sweep"]


def test_partitions_have_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    import v0_sweeps

    monkeypatch.setattr(v0_sweeps, "DATA", tmp_path)
    v0_sweeps.lines()
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.safetensors"))
    assert len(files) == 6
    for file in files:
        assert (tmp_path / file).read_bytes() == (o.ROOT / "data" / file).read_bytes()


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickled_sweep_can_be_loaded(project: Path, tmp_path: Path, name: str) -> None:
    expected, found = o.read_expected("pickles")[name], o.clean(o.describe_sweep(o.unpickled(tmp_path, name)))
    if not same_versions("python"):  # the identity depends on bytecode
        del expected["identity"], found["identity"]
    assert o.differences(expected, found) == []


# -- public interface and formats ------------------------------------------------------------------


def test_public_names_and_parameters() -> None:
    expected, found = o.read_expected("public"), o.clean(o.surface())
    lost = [
        f"{place}.{name}: {difference}"
        for kind in ("modules", "classes")
        for place, names in expected[kind].items()
        for name, known in names.items()
        for difference in o.lost_name(known, found[kind][place].get(name))
    ]
    assert lost == []


def test_public_attributes(project: Path) -> None:
    for name, known in o.read_expected("public")["attributes"].items():
        assert not set(known) - set(o.attributes(project)[name]), name


def test_verbs_and_options() -> None:
    assert o.differences(o.read_expected("public")["commands"], o.clean(o.options()), more=True) == []


@pytest.mark.parametrize("rule", RULES)
def test_names_of_hop_rules(project: Path, rule: str) -> None:
    import v0_sweeps

    assert v0_sweeps.sweep_of(regatta.search.grid(lr=[0.5], batch_size=[8]), rule=rule).rule == rule


def test_schemas_and_bytes_of_the_store(tmp_path: Path) -> None:
    repository = o.made_repository(tmp_path)
    expected, found = o.read_expected("schemas"), o.schemas(repository)
    assert expected["catalog"].pop("version") <= found["catalog"]["version"], "later steps add tables"
    assert o.differences(expected, found, more=True) == []
    expected, found = o.read_expected("store"), o.stored(repository)
    if not same_versions("zstandard", "pcodec"):  # they determine the compressed bytes
        del expected["packs"], found["packs"]
    assert o.differences(expected, found) == []


def test_the_description_of_the_format_is_the_same() -> None:
    assert o.format_digest() == o.read_expected("format")["FORMAT.md"]


def test_an_old_repository_gets_a_version_log_with_its_first_change(tmp_path: Path) -> None:
    project = o.unpack(tmp_path)
    folder = project / ".regatta"
    with regatta.Repo.open(folder, read_only=True) as repo:
        before = repo.catalog.read_entries()
        assert len(before) > 10 and repo.fsck("deep").clean
    assert not (folder / "versions.log").exists()
    with regatta.Repo.open(folder) as repo:
        name = repo.versions(limit=1)[0].reference
        repo.tag(name, "logged")
        assert repo.fsck("deep").clean
        repo.untag("logged")
    for path in folder.glob("catalog.sqlite*"):
        path.unlink()
    with regatta.Repo.open(folder) as repo:
        assert repo.catalog.read_entries() == before
        assert repo.fsck("deep").clean


def test_the_repository_is_sound_after_resuming(trained: Path) -> None:
    found = o.document(trained, "fsck", "--depth", "deep")
    assert found["code"] == 0, json.dumps(found)
