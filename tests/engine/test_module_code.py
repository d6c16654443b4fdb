"""Code of the user's modules that changed since a run began: it is noticed, named, and used only when asked for."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import regatta
from regatta.engine.module_code import MAX_PARSED_BYTES, code_changes, code_of, read_code
from regatta.errors import ConflictError
from regatta.run import open_run

FILES = {
    "own_losses.py": '''
"""Losses."""
import torch
from own_layers import shapes
SCALE = 1.0
def loss(model, batch):
    """The loss of a batch."""
    return SCALE * torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
def unused(x):
    return x
class Helper:
    WIDTH = 3
    def method(self):
        return 1
''',
    "own_layers/__init__.py": "from . import shapes\n",
    "own_layers/shapes.py": "HIDDEN = 4\n",
    "own_layers/late.py": "def rate(config):\n    from own_layers import deep\n    return deep.RATE\n",
    "own_layers/deep.py": "RATE = 0.1\n",
    "own_layers/named.py": "VALUE = 1\n",
    "own_unused.py": "VALUE = 1\n",
}
PROGRAM = """
import importlib, os, signal
import torch
import own_losses, own_unused
from own_layers import shapes
import regatta

def model_fn(config):
    from own_layers.late import rate
    importlib.import_module("own_layers.named")
    net = torch.nn.Linear(64, 10)
    return net, torch.optim.SGD(net.parameters(), lr=rate(config) * config["lr"])

def loss_fn(model, batch, config):
    assert shapes.HIDDEN
    if os.environ.get("INTERRUPT") and model.training:
        os.kill(os.getpid(), signal.SIGINT)
    return own_losses.loss(model, batch)

data = regatta.Dataset.digits(partitions=2)
sweep = regatta.Sweep(data, regatta.search.grid(lr=[0.1, 0.01], batch_size=64), model_fn, loss_fn=loss_fn,
                      cluster=regatta.Cluster.inline(1), epochs=1, pack=False)
if __name__ == "__main__":
    sweep.launch(progress=False, **eval(os.environ.get("LAUNCH", "{}")))
"""
NEEDED = {
    "own_losses", "own_layers", "own_layers.shapes", "own_layers.late", "own_layers.deep", "own_layers.named",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    root = Path(regatta.__file__).parents[1]
    path = {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **path, **environment}, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a program whose run was interrupted after its first unit."""
    folder = tmp_path_factory.mktemp("interrupted")
    for name, text in {**FILES, "program.py": PROGRAM}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    done = python(folder, "program.py", INTERRUPT="yes")
    assert done.returncode != 0, done.stderr
    run = open_run("digits-1", folder / ".regatta")
    assert run.record.status == "interrupted"
    assert set((read_code(run.folder) or {})["modules"]) == NEEDED
    return folder


def copied(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of the program and its run, as if it had been launched there."""
    shutil.copytree(interrupted, tmp_path / "copy")
    for name in ("journal.jsonl", "code.json"):
        path = tmp_path / "copy" / ".regatta" / "runs" / "digits-1" / name
        path.write_text(path.read_text().replace(str(interrupted), str(tmp_path / "copy")))
    return tmp_path / "copy"


def edit(folder: Path, file: str, before: str, after: str) -> None:
    text = (folder / file).read_text()
    assert before in text
    (folder / file).write_text(text.replace(before, after))


def test_a_resumed_run_names_what_has_changed(interrupted: Path, tmp_path: Path) -> None:
    folder = copied(interrupted, tmp_path)
    edit(folder, "own_losses.py", "SCALE *", "2 * SCALE *")
    edit(folder, "own_losses.py", "return 1", "return 2")
    edit(folder, "own_layers/deep.py", "0.1", "0.2")
    done = python(folder, "-m", "regatta", "resume", "digits-1")
    assert done.returncode == 4
    for text in ("own_losses", "own_losses.py", "Helper.method, loss", "own_layers.deep", "RATE", "--changed-code"):
        assert text in done.stderr
    assert "unused" not in done.stderr
    assert open_run("digits-1", folder / ".regatta").record.status == "interrupted"
    with pytest.raises(ConflictError, match=r"own_layers\.deep"):
        open_run("digits-1", folder / ".regatta").go_on(progress=False)

    done = python(folder, "-m", "regatta", "resume", "digits-1", "--changed-code")
    assert done.returncode == 0, done.stderr
    run = open_run("digits-1", folder / ".regatta")
    record = run.record
    assert record.status == "done"
    assert any(level == "warning" and "changed code" in text and "RATE" in text for level, text in record.notes)
    assert not code_changes(read_code(run.folder)), "the new code is that of the run from now on"

    done = python(folder, "-m", "regatta", "replay", "digits-1", "--json")
    assert "own_layers.deep" in json.loads(done.stdout)["changed_code"][0]


@pytest.mark.slow
def test_a_copied_project_is_compared_with_its_own_modules(interrupted: Path, tmp_path: Path) -> None:
    """The files that the run recorded still exist: they are those of the project that was copied."""
    first = copied(interrupted, tmp_path)
    shutil.copytree(first, tmp_path / "second")
    edit(tmp_path / "second", "own_layers/deep.py", "0.1", "0.2")
    done = python(tmp_path / "second", "-m", "regatta", "resume", "digits-1")
    assert done.returncode == 4
    assert f"own_layers.deep ({tmp_path / 'second' / 'own_layers' / 'deep.py'}): RATE" in done.stderr
    edit(tmp_path / "second", "own_layers/deep.py", "0.2", "0.1")
    edit(first, "own_layers/deep.py", "0.1", "0.2")
    done = python(tmp_path / "second", "-m", "regatta", "resume", "digits-1")
    assert done.returncode == 0, done.stderr


def test_comments_and_other_modules_do_not_count(interrupted: Path, tmp_path: Path) -> None:
    folder = copied(interrupted, tmp_path)
    edit(folder, "own_losses.py", '"""The loss of a batch."""', '"""Its loss."""  # of a batch')
    edit(folder, "own_unused.py", "1", "2")
    done = python(folder, "-m", "regatta", "resume", "digits-1")
    assert done.returncode == 0, done.stderr
    assert open_run("digits-1", folder / ".regatta").record.status == "done"


@pytest.mark.slow
def test_a_program_with_changed_modules_begins_a_new_run(interrupted: Path, tmp_path: Path) -> None:
    """And says why. The same program with `changed_code` resumes the old run."""
    folder = copied(interrupted, tmp_path)
    edit(folder, "own_layers/deep.py", "0.1", "0.2")
    done = python(folder, "program.py")
    assert done.returncode == 0, done.stderr
    assert "digits-1 was interrupted and is not resumed" in done.stderr
    assert "own_layers.deep" in done.stderr
    assert open_run("digits-2", folder / ".regatta").record.status == "done"
    done = python(folder, "-m", "regatta", "run", "program.py", "--changed-code")
    assert done.returncode == 0, done.stderr
    assert open_run("digits-1", folder / ".regatta").record.status == "done"


def test_a_program_that_changed_itself_says_which_functions(interrupted: Path, tmp_path: Path) -> None:
    folder = copied(interrupted, tmp_path)
    edit(folder, "program.py", "own_losses.loss(model, batch)", "own_losses.loss(model, batch) * 2")
    done = python(folder, "program.py")
    assert done.returncode == 0, done.stderr
    assert "because its code has changed: loss_fn\n" in done.stderr
    done = python(folder, "program.py", LAUNCH="{'changed_code': True}")
    assert done.returncode == 0, done.stderr
    run = open_run("digits-1", folder / ".regatta")
    assert run.record.status == "done"
    assert (read_code(run.folder) or {})["changed"] == ["loss_fn"]


def test_a_module_that_is_gone_is_named(interrupted: Path, tmp_path: Path) -> None:
    folder = copied(interrupted, tmp_path)
    (folder / "own_layers" / "named.py").unlink()
    done = python(folder, "-m", "regatta", "resume", "digits-1")
    assert done.returncode == 4
    assert "own_layers.named" in done.stderr
    assert "is gone" in done.stderr


def test_runs_of_earlier_versions_can_be_resumed(interrupted: Path, tmp_path: Path) -> None:
    folder = copied(interrupted, tmp_path)
    (folder / ".regatta" / "runs" / "digits-1" / "code.json").unlink()
    edit(folder, "own_layers/deep.py", "0.1", "0.2")
    done = python(folder, "-m", "regatta", "resume", "digits-1")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield lambda: importlib.import_module("own_losses")
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "before", "after", "names"),
    [
        ("own_losses.py", "SCALE = 1.0", "SCALE = 2.0", ["SCALE"]),
        ("own_losses.py", "return x", "return -x", ["unused"]),
        ("own_losses.py", "WIDTH = 3", "WIDTH = 4", ["Helper.WIDTH"]),
        ("own_losses.py", "class Helper:", "class Helper(dict):", ["Helper"]),
        ("own_losses.py", "from own_layers import shapes", "from own_layers import deep as shapes", ["module level"]),
        ("own_losses.py", "def unused(x)", "@torch.no_grad()\ndef unused(x)", ["unused"]),
        ("own_losses.py", '"""Losses."""', '"""Other losses."""', []),
        ("own_losses.py", "def unused(x):", "# a comment\n\ndef unused( x ):", []),
        ("own_layers/shapes.py", "4", "5", ["HIDDEN"]),
    ],
)
def test_what_counts_as_a_change(
    folder: Path, loaded: Any, file: str, before: str, after: str, names: list[str]
) -> None:
    code = code_of(cloudpickle.dumps(loaded().loss))
    assert not code_changes(code)
    edit(folder, file, before, after)
    assert [name for change in code_changes(code) for name in change.names] == names


def test_files_that_are_not_parsed_count_as_a_whole(folder: Path, loaded: Any) -> None:
    """Generated tables and compiled modules: any change of the file is one, and no memory goes into their trees."""
    table = "TABLE = [\n" + "    0.125,\n" * (MAX_PARSED_BYTES // 11 + 1) + "]\n"
    (folder / "own_layers" / "deep.py").write_text(table)
    edit(folder, "own_losses.py", "from own_layers import shapes", "from own_layers import shapes, deep")
    code = code_of(cloudpickle.dumps(loaded().loss))
    assert code["modules"]["own_layers.deep"]["names"] is None
    assert code["modules"]["own_layers.shapes"]["names"]
    assert not code_changes(code)
    (folder / "own_layers" / "deep.py").write_text(table.replace("125", "5", 1))
    assert [(change.module, change.names) for change in code_changes(code)] == [("own_layers.deep", ())]


def test_long_expressions_of_generated_code_are_hashed(folder: Path, loaded: Any) -> None:
    """`a + b + ...` is a tree as deep as it is long, deeper than Python calls functions."""
    terms = [f"'{number}'" for number in range(1500)]
    with (folder / "own_losses.py").open("a") as file:
        file.write(f"LONG = {' + '.join(terms)}\n")
    code = code_of(cloudpickle.dumps(loaded().loss))
    assert not code_changes(code)
    edit(folder, "own_losses.py", "'0' + '1'", "'1' + '0'")
    assert [change.names for change in code_changes(code)] == [("LONG",)]


def test_packages_without_init_file_that_are_imported_late(folder: Path, loaded: Any) -> None:
    (folder / "own_plain" / "inner").mkdir(parents=True)
    (folder / "own_plain" / "inner" / "part.py").write_text("VALUE = 1\n")
    edit(folder, "own_losses.py", "    return x", "    from own_plain.inner.part import VALUE\n    return x")
    code = code_of(cloudpickle.dumps(loaded().loss))
    assert "own_plain.inner.part" in code["modules"] and "own_plain" not in sys.modules
    edit(folder, "own_plain/inner/part.py", "1", "2")
    assert [(change.module, change.names) for change in code_changes(code)] == [("own_plain.inner.part", ("VALUE",))]


def test_the_docstring_of_an_empty_module_is_no_change(folder: Path, loaded: Any) -> None:
    (folder / "own_layers" / "deep.py").write_text("")
    edit(folder, "own_losses.py", "from own_layers import shapes", "from own_layers import shapes, deep")
    code = code_of(cloudpickle.dumps(loaded().loss))
    (folder / "own_layers" / "deep.py").write_text('"""Nothing yet."""\n')
    assert not code_changes(code)
