"""The printed text of commands, compared with tests/fixtures/cli/*.txt.

`pytest tests/cli/test_output_fixtures.py --update-fixtures` writes the files again; look at their diff.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_run import FakeRun

from regatta.cli.main import VERBS, build_parser, main
from regatta.repo import Repo

FIXTURES = Path(__file__).parents[1] / "fixtures" / "cli"
NOON = 1_760_000_000.0  # of the versions; a minute between any two
NETWORK = {
    "nodes": [
        {"id": "in", "kind": "INPUT"},
        {"id": "fc", "kind": "FULL", "attributes": {"width": 3}},
        {"id": "out", "kind": "OUTPUT"},
    ],
    "edges": [["in", "fc"], ["fc", "out"]],
}
COMMANDS = {
    "list": ["list"],
    "list-best": ["list", "--metric", "accuracy", "--best", "--no-graph"],
    "log": ["log", "mlp"],
    "log-oneline": ["log", "--oneline"],
    "desc": ["desc", "mlp"],
    "diff": ["diff", "mlp@1", "mlp@2"],
    "diff-same": ["diff", "mlp@1", "mlp@1"],
    "status": ["status"],
    "add": ["add", "config.json", "log.csv"],
    "fsck": ["fsck", "--depth", "deep"],
    "gc": ["gc"],
    "runs": ["runs"],
    "show": ["show", "made"],
    "show-accounts": ["show", "made", "--accounts"],
    "error-command": ["shwo"],
    "error-option": ["show", "--repotr", "x"],
    "error-run": ["show", "mode"],
    "error-explain": ["explain", "made"],
    "error-version": ["desc", "mpl"],
    "error-metric": ["list", "--metric", "acuracy"],
    "error-parameter": ["commit", "mlp", "--param", "lr"],
    "error-file": ["run", "missing.py"],
    "error-tag": ["tag", "best", "mlp@1"],
    "error-delete": ["delete", "mlp@2"],
    "error-checkout": ["checkout", "mlp", "config.json"],
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with three versions of two models, a run and two files; the same in each test run."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "config.json").write_text('{"lr": 0.1, "layers": 2}\n')
    (folder / "log.csv").write_text("epoch,loss\n1,0.5\n2,0.25\n")
    numbers = iter(range(100))
    weights = np.arange(-4, 8, dtype="f4").reshape(3, 4) / 8
    with Repo.init(folder) as repo:
        repo.clock = lambda: NOON + 60 * next(numbers)
        first = repo.commit(
            "mlp", {"fc.weight": weights}, network=NETWORK, hyperparameters={"lr": 0.1, "layers": 2},
            metrics={"loss": [0.9, 0.5], "accuracy": [0.6, 0.8]}, files={"train.py": b"print()\n"}, message="first",
            git=False, ident="a1" * 16,
        )  # fmt: skip
        second = repo.commit(
            "mlp", {"fc.weight": weights * 2}, network=NETWORK, hyperparameters={"lr": 0.01, "layers": 2},
            metrics={"loss": [0.8, 0.3], "accuracy": [0.7, 0.9]}, parents=[first], message="a smaller rate",
            git=False, ident="b2" * 16,
        )  # fmt: skip
        repo.tag(second, "best")
        repo.commit("cnn", metrics={"accuracy": 0.95}, parents=[second], git=False, ident="c3" * 16)
    FakeRun(fails=(3,), nans=(5,)).write(folder / ".regatta" / "runs")
    return folder


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Path:
    """A copy for each test, since commands change it."""
    return Path(shutil.copytree(template, tmp_path / "project"))


@pytest.fixture
def shell(project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable]:
    """Run a command in the project; the exit code and all that it prints, as one text."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.argv", ["regatta"])
    monkeypatch.setattr("shutil.which", lambda name: name)
    time.tzset()

    def run(words: list[str]) -> str:
        try:
            code = main(words)
        except SystemExit as ended:  # --help
            code = int(ended.code or 0)
        printed = capfd.readouterr()
        text = f"$ regatta {' '.join(words)}\n{printed.out}"
        text += "".join(f"stderr: {line}".rstrip() + "\n" for line in printed.err.splitlines())
        return f"{text}exit code {code}\n"

    yield run
    monkeypatch.undo()
    time.tzset()


def normalised(text: str, project: Path) -> str:
    """Without what differs between machines: the folder of the project, and sizes of compressed weights."""
    text = text.replace(str(project), "PROJECT")
    return re.sub(r"\d+ B stored", "N B stored", text)


def compare(name: str, text: str, update: bool) -> None:
    path = FIXTURES / f"{name}.txt"
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path.name} is missing: run this test with --update-fixtures"
    assert text == path.read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_output_of_each_command_matches_its_fixture(
    name: str, shell: Callable[..., str], project: Path, update_fixtures: bool
) -> None:
    compare(name, normalised(shell(COMMANDS[name]), project), update_fixtures)


def test_the_help_of_each_command_matches_its_fixture(shell: Callable[..., str], update_fixtures: bool) -> None:
    _, verbs = build_parser()
    assert len(verbs) == len(VERBS)
    texts = [shell(["--help"]), *(shell([verb, "--help"]) for verb in sorted(verbs))]
    compare("help", "\n".join(texts), update_fixtures)


def test_every_fixture_belongs_to_a_command() -> None:
    assert {path.stem for path in FIXTURES.glob("*.txt")} == {*COMMANDS, "help"}
