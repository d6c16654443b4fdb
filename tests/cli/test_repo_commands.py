"""The commands of the repository, as a user types them, on a real run and on real files."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from locations import ROOT
from safetensors.numpy import load_file, save_file

from regatta.cli.main import main
from regatta.repo import Repo

REGATTA = [sys.executable, "-c", "from regatta.cli.main import entry; entry()"]
VERSION_KEYS = {
    "reference", "id", "name", "number", "created", "message", "hyperparameters", "metrics", "metadata", "git", "run",
    "config", "network", "snapshots", "parameters", "bytes",
}  # fmt: skip
PROGRAM = """
import numpy as np
import regatta
from regatta.frameworks.numpy import SGD

def model_fn(config):
    return {"w": np.zeros(3)}, SGD(lr=config["lr"])

def loss_fn(weights, batch, config):
    x, y = batch
    error = x @ weights["w"] - y
    return float((error**2).mean()), {"w": 2 * x.T @ error / len(y)}

x = np.random.default_rng(0).normal(size=(200, 3))
data = regatta.Dataset.from_arrays(x, x @ np.array([1.0, -2.0, 0.5]), partitions=4, seed=0, name="line")
space = regatta.search.grid(lr=[0.1, 0.01], batch_size=[10])
sweep = regatta.Sweep(data, space, model_fn, loss_fn=loss_fn, epochs=2, cluster=regatta.Cluster.inline(2))
"""


class Shell:
    """The command line, called in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: object, code: int = 0) -> str:
        assert main([str(word) for word in words]) == code, self.capsys.readouterr().err
        shown = self.capsys.readouterr()
        return shown.out if code == 0 else shown.err

    def json(self, *words: object, code: int = 0) -> dict[str, Any]:
        assert main([*map(str, words), "--json"]) == code, self.capsys.readouterr().err
        document: dict[str, Any] = json.loads(self.capsys.readouterr().out, parse_constant=_refuse)
        assert document.pop("version") == 1
        return document


def _refuse(constant: str) -> None:
    raise ValueError(constant)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


@pytest.fixture
def files(here: Path, shell: Shell) -> Path:
    """A project with a repository, weights of two epochs, a log and settings."""
    for epoch in (1, 2):
        save_file({"fc.weight": np.full((4, 3), epoch, "f4")}, here / f"net-epoch{epoch}.safetensors")
    (here / "log.csv").write_text("epoch,loss\n1,0.5\n2,0.25\n")
    (here / "config.toml").write_text("lr = 0.1\n[opt]\nname = 'adam'\n")
    shell("init")
    return here


@pytest.fixture
def versions(files: Path, shell: Shell) -> Path:
    shell("add", "net-epoch1.safetensors", "config.toml")
    shell("commit", "base", "-m", "the first")
    shell("add", "net-epoch2.safetensors", "log.csv")
    shell("commit", "tuned", "--parent", "base", "--param", "lr=0.01", "--tag", "production")
    shell("copy", "production", "wider", "-m", "to be wider")
    return files


def test_init_reports_an_existing_repository(here: Path, shell: Shell) -> None:
    assert shell("init") == "Created a repository in .regatta\n"
    assert shell("init") == "There is a repository in .regatta\n"
    assert shell.json("init", "elsewhere") == {
        "folder": str(here / "elsewhere" / ".regatta"), "made": True, "versions": 0,
    }  # fmt: skip


def test_files_are_added_and_committed_as_a_version(files: Path, shell: Shell) -> None:
    document = shell.json("add", "net-epoch2.safetensors", "net-epoch1.safetensors", "log.csv", "config.toml")
    kinds = {item["name"]: (item["kind"], item["epoch"]) for item in document["staged"]}
    assert kinds == {
        "net-epoch1.safetensors": ("weights", 1), "net-epoch2.safetensors": ("weights", 2),
        "log.csv": ("metrics", None), "config.toml": ("hyperparameters", None),
    }  # fmt: skip
    assert shell.json("status")["staged"] == document["staged"]
    shown = shell("status")
    assert shown.startswith(".regatta: 0 versions of 0 models\n") and "after epoch 2" in shown
    made = shell.json("commit", "net", "-m", "first", "--param", "seed=3", "--metric", "accuracy=0.9")["committed"]
    assert set(made) == VERSION_KEYS and made["reference"] == "net@1" and made["snapshots"] == 2
    assert made["hyperparameters"] == {"lr": 0.1, "opt.name": "adam", "seed": 3}
    assert made["metrics"]["loss"]["lowest"] == 0.25 and made["metrics"]["accuracy"]["last"] == 0.9
    assert "nothing is staged" in shell("status")
    shell("add", "log.csv")
    assert shell.json("unstage")["unstaged"][0]["name"] == "log.csv"
    assert "Nothing is staged" in shell("commit", "net", code=2)


def test_a_version_records_the_git_commit(files: Path, shell: Shell) -> None:
    for words in (["init", "-q", "-b", "trunk"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)
    shell("add", "config.toml")
    git = shell.json("commit", "net")["committed"]["git"]
    assert git["branch"] == "trunk" and len(git["commit"]) == 40
    assert f"git {git['commit'][:10]} on trunk" in shell("log")


WRONG: list[tuple[list[str], int, str]] = [
    (["add", "nothing.pt"], 3, "There is no such file"),
    (["add", "/dev/null"], 2, "It is a device"),
    (["add", "log.csv", "--as", "weights"], 2, "is not read as weights"),
    (["commit"], 2, "The version needs a name"),
    (["commit", "a@3", "--param", "x=1"], 2, "ends like the number of a version"),
    (["commit", "a", "--param", "lr"], 2, "is not of the form"),
    (["commit", "a", "--metric", "loss=low"], 2, "is not a number"),
    (["commit", "a", "--parent", "nobody", "--param", "x=1"], 3, "There is no version 'nobody'"),
    (["commit", "a", "--run", "r"], 2, "Use --run alone"),
    (["commit", "--run", "r"], 3, "There is no run 'r'"),
    (["unstage", "x"], 3, "is not staged"),
    (["list", "--since", "yesterday"], 2, "is not a date"),
    (["list", "--best"], 2, "--metric"),
    (["list", "-n", "0"], 2, "0 versions"),
    (["gc", "--grace", "5"], 2, "is not a time"),
    (["tag", "x"], 2, "The version of the tag is missing"),
    (["archive", "x"], 2, "--lossy"),
    (["archive", "--lossy", "float16"], 2, "A lossy scheme needs the versions"),
    (["archive", "--budget", "0.5"], 2, "no plan takes less"),
    (["delete", "x"], 3, "There is no version"),
    (["checkout", "x", "y"], 3, "There is no version"),
]


def test_wrong_arguments_are_errors(versions: Path, shell: Shell) -> None:
    for words, code, said in WRONG:
        shown = shell(*words, code=code)
        assert shown.startswith("error: ") and said in shown, words
    assert shell.json("status")["versions"] == 3 and not shell.json("status")["staged"]


def test_commands_without_a_repository_are_errors(here: Path, shell: Shell) -> None:
    for words in (["list"], ["log"], ["status"], ["tag"], ["add", "x"], ["commit", "x"], ["fsck"], ["gc"], ["archive"]):
        assert "`regatta init` makes one" in shell(*words, code=3)
    assert "there is none here or above" in shell("doctor")


def test_list_shows_versions(versions: Path, shell: Shell) -> None:
    document = shell.json("list")
    assert [entry["reference"] for entry in document["versions"]] == ["wider@1", "tuned@1", "base@1"]
    assert all(set(entry) == VERSION_KEYS | {"tags", "parents"} for entry in document["versions"])
    wider, tuned, base = document["versions"]
    assert wider["parents"] == [{"id": tuned["id"], "kind": "copy", "epoch": 2}] and tuned["tags"] == ["production"]
    assert base["parents"] == [] and document["total"] == 3
    lines = shell("list").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["●", "wider@1"], ["●", "tuned@1"], ["○", "base@1"]]
    assert "[production]" in lines[-2] and "0.25" in lines[-2]


def test_a_table_fits_its_terminal(versions: Path) -> None:
    from regatta.cli.output.table_lines import fit, table_lines
    from regatta.cli.output.version_tables import version_table

    with Repo.open() as repo:
        table = version_table(repo.versions(), {})
    for room in (40, 60, 80, 120):
        lines = list(table_lines(table, room, lambda text, style: text))
        assert max(map(len, lines)) <= room
        assert [column.name for column in fit(table, room).columns][:2] == ["version", "loss"]
    assert {"id", "created", "lr", "opt.name", "size"} <= {column.name for column in fit(table, None).columns}
    assert "lr" in fit(table, 30).below[0]


def test_rows_are_sorted_before_they_are_limited(versions: Path, shell: Shell) -> None:
    rows = shell("list", "--sort", "version", "-n", "1").splitlines()
    assert rows[1].startswith("base@1") and "2 more" in rows[-1]
    assert shell("list", "--sort", "version", "--reverse").splitlines()[1].startswith("wider@1")
    assert "Did you mean version?" in shell("list", "--sort", "versoin", code=2)


def test_formats_for_other_programs_are_complete(versions: Path, shell: Shell) -> None:
    rows = list(csv.DictReader(io.StringIO(shell("list", "--csv"))))
    entries = shell.json("list")["versions"]
    assert [row["id"] for row in rows] == [entry["id"] for entry in entries]
    for row, entry in zip(rows, entries, strict=True):
        values = entry["hyperparameters"]
        assert {name: row[name] for name in values} == {name: str(value) for name, value in values.items()}
        best = [repr(found["lowest"]) for name, found in entry["metrics"].items() if name == "loss"]
        assert row["loss"] == (best[0] if best else "")
    lines = shell("list", "--md").splitlines()
    assert len(lines) == 2 + len(entries) and all(line.count("|") == lines[0].count("|") for line in lines)


def test_options_that_exclude_each_other_are_refused(versions: Path, shell: Shell) -> None:
    assert "not allowed with" in shell("list", "--csv", "--json", code=2)
    assert "not for --json" in shell("list", "--sort", "loss", "--json", code=2)
    assert "--reverse needs --sort" in shell("list", "--reverse", code=2)


def references(shell: Shell, *words: object) -> list[str]:
    return [entry["reference"] for entry in shell.json("list", *words)["versions"]]


def test_list_filters_versions(versions: Path, shell: Shell) -> None:
    assert references(shell, "w*") == ["wider@1"]
    assert references(shell, "--search", "first") == ["base@1"]
    assert references(shell, "--where", "lr=0.1") == ["base@1"]
    assert references(shell, "--where", "lr=0.1", "--where", "lr=0.01") == ["wider@1", "tuned@1", "base@1"]
    assert references(shell, "--metric", "loss", "--best") == ["tuned@1"]
    assert references(shell, "-n", "1") == ["wider@1"]
    assert references(shell, "--since", "1h") == ["wider@1", "tuned@1", "base@1"]
    assert references(shell, "--until", "2001-01-01") == []
    assert shell("list", "--names").split() == ["base", "tuned", "wider"]
    assert shell.json("list", "--names")["names"][0] == {"name": "base", "versions": 1}


def test_misspelt_filters_get_the_nearest_names(versions: Path, shell: Shell) -> None:
    assert "Did you mean lr?" in shell("list", "--where", "lrr = 0.1", code=3)
    error = shell("list", "--where", "lrr=0.1", code=3)
    assert "No version has the hyperparameter 'lrr'" in error and "Did you mean lr?" in error
    assert "Did you mean param.lr?" in shell("list", "--where", "lrr < 0.1", code=2)
    main(["list", "tunned"])
    assert "Did you mean tuned?" in shell.capsys.readouterr().err
    main(["list", "--where", "lr=7"])  # a name that exists, with a value that does not
    assert "None of the 3 versions matches.\n" in shell.capsys.readouterr().err


def test_log_follows_parents(versions: Path, shell: Shell) -> None:
    shown = shell("log", "wider")
    assert shown.index("wider@1") < shown.index("copy of tuned@1 after epoch 2") < shown.index("derived from base@1")
    assert "loss 0.25 at 2" in shown and "    the first" in shown
    assert [line.split()[1] for line in shell("log", "tuned", "--oneline").splitlines()] == ["tuned@1", "base@1"]
    assert len(shell.json("log", "-n", "2")["versions"]) == 2


def test_tags_can_be_moved_and_deleted(versions: Path, shell: Shell) -> None:
    assert "Move it: --move" in shell("tag", "production", "base", code=4)
    assert shell("tag", "production", "base", "--move") == "production is base@1\n"
    assert shell.json("tag")["tags"][0]["version"] == "base@1" and "base@1" in shell("tag")
    assert shell("tag", "--names") == "production\n"
    assert shell.json("tag", "--delete", "production") == {"deleted": "production"}
    assert shell.json("tag")["tags"] == []
    assert "cannot have the same name" in shell("tag", "base", "tuned", code=4)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
def test_checkout_writes_weights_as_files(versions: Path, shell: Shell, suffix: str) -> None:
    document = shell.json("checkout", "tuned", f"out{suffix}")
    assert document["reference"] == "tuned@1" and document["files"] == [str(versions / f"out{suffix}")]
    assert "--force" in shell("checkout", "base", f"out{suffix}", code=4)
    shell("checkout", "base", f"out{suffix}", "--force")
    shell("add", f"out{suffix}")  # what was written can be read
    shell("commit", "again")
    with Repo.open() as repo:
        assert np.array_equal(repo.load("again")["fc.weight"], np.full((4, 3), 1, "f4"))


def test_checkout_writes_a_whole_version_as_a_folder(versions: Path, shell: Shell) -> None:
    document = shell.json("checkout", "tuned", "out", "--snapshot", "2")
    names = [os.path.relpath(path, versions / "out") for path in document["files"]]
    assert names == ["files/log.csv", "version.json", "weights.safetensors"]
    assert load_file(versions / "out" / "weights.safetensors")["fc.weight"][0, 0] == 2
    assert "has no snapshot 7" in shell("checkout", "tuned", "other", "--snapshot", "7", code=3)


def test_checkout_and_copy_take_a_version_after_an_epoch(versions: Path, shell: Shell) -> None:
    assert shell.json("checkout", "tuned@1:2", "out.npz")["reference"] == "tuned@1"
    assert shell.json("copy", "tuned:2", "half")["base"] == "tuned@1"
    assert "has no snapshot 7" in shell("checkout", "tuned:7", "other", code=3)
    with Repo.open() as repo, np.load("out.npz") as written:
        assert written["fc.weight"][0, 0] == repo.load("half")["fc.weight"][0, 0] == 2
        assert repo.load("tuned:2")["fc.weight"][0, 0] == 2


def test_a_checked_out_copy_can_be_committed_as_the_next_version(versions: Path, shell: Shell) -> None:
    document = shell.json("copy", "tuned", "deeper", "--out", "work")
    assert document["base"] == "tuned@1" and document["copied"]["hyperparameters"]["lr"] == 0.01
    save_file({"fc.weight": np.zeros((4, 3), "f4")}, versions / "work" / "weights.safetensors")
    shell("add", "work")
    made = shell.json("commit", "--parent", "deeper", "-m", "changed")["committed"]
    assert made["reference"] == "deeper@2" and made["hyperparameters"]["lr"] == 0.01


def test_delete_refuses_versions_with_children_or_tags(versions: Path, shell: Shell) -> None:
    assert "the child tuned@1" in shell("delete", "base", code=4)
    assert "the tag 'production'" in shell("delete", "tuned", code=4)
    shell("delete", "base", "tuned", "wider", "--force")
    assert shell.json("status")["versions"] == 0
    assert shell.json("gc", "--grace", "0")["snapshots"] == 2
    assert shell("gc", "--grace", "0") == "nothing to free\n"


def test_fsck_finds_damage(versions: Path, shell: Shell) -> None:
    assert shell("fsck", "--depth", "deep").startswith("clean: 3 versions, ")
    (pack, *_) = (versions / ".regatta" / "store" / "packs").rglob("*.pack")
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 0xFF
    pack.chmod(0o644)
    pack.write_bytes(content)
    document = shell.json("fsck", "--depth", "checksums", code=1)
    assert document["problems"] and not document["clean"]


def test_archive_reports_what_it_would_save(versions: Path, shell: Shell) -> None:
    document = shell.json("archive", "--dry-run")
    assert document["dry_run"] and document["store"]["bytes_after"] is None
    disk = {"disk_before", "disk_after", "disk_after_gc"}
    assert set(document) == {"dry_run", "states", "state_bytes", "live", "lossy", "trial", "store", *disk}
    assert "in the store" in shell("archive", "--budget", "2")
    lossy = shell.json("archive", "base", "--lossy", "float16")["lossy"]
    assert lossy == [
        {"version": "base@1", "snapshots": 1, "bytes_before": 48, "largest_change": 0.0,
         "bytes_after": lossy[0]["bytes_after"]}
    ]  # fmt: skip


def test_a_run_commits_versions_and_committing_again_changes_nothing(
    here: Path, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "line.py").write_text(PROGRAM)
    shell("run", "line.py")
    entries = shell.json("list", "--run", "line-1", "--metric", "loss", "--best")["versions"]
    assert [entry["snapshots"] for entry in entries] == [2, 2] and entries[0]["hyperparameters"]["lr"] == 0.1
    again = shell.json("commit", "--run", "line-1")["versions"]
    assert {entry["id"] for entry in again} == {entry["id"] for entry in entries}
    shell("copy", entries[0]["reference"], "picked")
    assert [entry["name"] for entry in shell.json("log", "picked")["versions"]] == ["picked", entries[0]["name"]]
    assert "states as files" in shell("archive", "--dry-run")
    assert main(["archive", "--progressive", "--dry", "--budget", "inf"]) == 0
    assert "it is done: regatta archive --progressive --budget inf\n" in capsys.readouterr().err
    assert shell.json("archive")["states"] == 4
    assert shell("fsck", "--depth", "deep").startswith("clean: 3 versions, ")


def test_doctor_reports_the_environment(versions: Path, shell: Shell) -> None:
    document = shell.json("doctor")
    by_name = {finding["what"]: finding for finding in document["findings"]}
    assert document["state"] in ("ok", "note", "warning") and by_name["catalog"]["says"] == "sound, 3 versions"
    assert {"python", "torch", "extras", "disk", "repository", "runs"} <= set(by_name)
    shell("add", "log.csv")
    (versions / ".regatta" / "runs" / "cut").mkdir(parents=True)
    (versions / ".regatta" / "runs" / "cut" / "journal.jsonl").write_text("nonsense\n")
    assert shell.json("doctor", code=1)["state"] == "error"
    assert main(["doctor"]) == 1
    printed = shell.capsys.readouterr().out
    assert "1 files wait for a commit" in printed and "run cut" in printed and "-> " in printed


def test_dlv_is_the_same_command(versions: Path) -> None:
    done = subprocess.run([*REGATTA, "list", "--names"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["base", "tuned", "wider"]
    scripts = (ROOT / "pyproject.toml").read_text()
    assert 'dlv = "regatta.cli.main:entry"' in scripts and 'regatta = "regatta.cli.main:entry"' in scripts


@pytest.fixture
def with_network(here: Path, shell: Shell) -> Path:
    """A version with a network, committed from a file of weights and a file of its network."""
    import torch

    from regatta.network import from_torch, to_json

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).eval()
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    shell("init")
    save_file(weights, "net-epoch7.safetensors")
    (here / "net.json").write_text(to_json(from_torch(net, torch.zeros(2, 4))))
    shell("add", "net-epoch7.safetensors")
    shell("add", "net.json", "--as", "network")
    shell("commit", "net", "-m", "with a network", "--param", "width=3")
    return here


def test_a_network_is_added_from_json(with_network: Path, shell: Shell) -> None:
    with Repo.open() as repo:
        network = repo.network("net")
    assert network is not None and [node["kind"] for node in network["nodes"]][1:4] == ["FULL", "RELU", "FULL"]
    (with_network / "wrong.json").write_text("{}")
    error = shell("add", "wrong.json", "--as", "network", code=2)
    assert "wrong.json: It is not a network: the document: edges, format, nodes, version are missing." in error


def test_a_checkout_that_is_added_keeps_parent_epoch_and_network(with_network: Path, shell: Shell) -> None:
    [parent] = shell.json("list")["versions"]
    for name, path in (("folder", "out"), ("file", "again.safetensors")):
        shell("checkout", "net", path)
        shell("add", path)
        shell("commit", name)
        made = shell.json("list", name)["versions"][0]
        assert [each["id"] for each in made["parents"]] == [parent["id"]]
        assert made["network"] == parent["network"]
        with Repo.open() as repo:
            assert [each.epoch for each in repo.snapshots(name)] == [7]
    assert shell.json("list", "folder")["versions"][0]["hyperparameters"] == {"width": 3}


def test_a_checkout_keeps_its_network_in_another_repository(with_network: Path, shell: Shell) -> None:
    shell("checkout", "net", "out")
    shell("init", "other")
    shell("add", "out", "--repo", "other/.regatta")
    shell("commit", "net", "--repo", "other/.regatta")
    made = shell.json("list", "--repo", "other/.regatta")["versions"][0]
    assert made["network"] is not None and made["parents"] == []


def test_a_child_inherits_the_network_that_fits_its_weights(with_network: Path) -> None:
    with Repo.open() as repo:
        weights = dict(repo.load("net"))
        child = repo.commit("child", {name: value * 2 for name, value in weights.items()}, parents=["net"])
        assert child.network == repo.version("net").network
        other = repo.commit("other", {"0.weight": np.zeros((5, 4), np.float32)}, parents=["net"])
        assert other.network is None


def test_a_version_is_checked_out_as_onnx(with_network: Path, shell: Shell) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    shell("checkout", "net", "out.onnx")
    model = onnx.load("out.onnx")
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    [found] = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: x})
    w = load_file("net-epoch7.safetensors")
    hidden = np.maximum(x @ w["0.weight"].T + w["0.bias"], 0)
    np.testing.assert_allclose(found, hidden @ w["2.weight"].T + w["2.bias"], rtol=1e-5, atol=1e-6)
    assert {each.key: each.value for each in model.metadata_props}["regatta.epoch"] == "7"


@pytest.mark.parametrize("name", ["out.keras", "out.h5", "out.ckpt", "OUT.PKL"])
def test_formats_that_are_not_written_are_refused(with_network: Path, shell: Shell, name: str) -> None:
    error = shell("checkout", "net", name, code=2)
    assert "cannot be written as" in error and ".safetensors" in error and ".onnx" in error
    assert not (with_network / name).exists()
    shell("checkout", "net", "release.v1.5")  # a folder


def test_a_version_without_a_network_is_not_onnx(versions: Path, shell: Shell) -> None:
    assert "has no network" in shell("checkout", "base", "out.onnx", code=2)
    assert not (versions / "out.onnx").exists()
