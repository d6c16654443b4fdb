"""Completion scripts, executed by their shells."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_run import FakeRun

from regatta.cli.commands.repository.completion import INSTALL, completion_script
from regatta.cli.main import main


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder below a project with two runs, and a `regatta` that lists two versions and a tag."""
    for run in ("digits-1", "digits-2"):
        FakeRun(configs=2, name=run).write(tmp_path / ".regatta" / "runs")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "regatta"
    program.write_text(
        "#!/bin/sh\n[ \"$*\" = 'list --names' ] && printf 'resnet\\nmlp\\n'\n[ \"$*\" = 'tag --names' ] && echo best\n"
    )
    program.chmod(0o755)
    (tmp_path / "src").mkdir()
    return tmp_path


def shell(program: str, script: str, project: Path) -> list[str]:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    flags = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[program]
    environment = {"PATH": f"{project / 'bin'}:/usr/bin:/bin", "HOME": str(project), "LANG": "C.UTF-8", "TERM": "dumb"}
    done = subprocess.run(
        [program, *flags, "-c", script],
        capture_output=True,
        text=True,
        cwd=project / "src",
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def bash_completes(words: list[str], project: Path) -> list[str]:
    listed = " ".join(f"'{word}'" for word in words)
    call = f'COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _shtab_regatta; echo "${{COMPREPLY[@]}}"'
    return shell("bash", f"{completion_script('bash')}\n{call}", project)


def fish_completes(words: list[str], project: Path) -> list[str]:
    call = f"complete -C '{' '.join(words)}' | string replace -r '\\t.*' ''"
    return shell("fish", f"{completion_script('fish')}\n{call}", project)


@pytest.mark.parametrize("completes", [bash_completes, fish_completes])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["regatta", "ru"], {"run", "runs"}),
        (["regatta", "fsck", "--re"], {"--repo", "--repair", "--rebuild-index"}),
        (["regatta", "fsck", "--depth", ""], {"structure", "checksums", "deep"}),
        (["regatta", "completion", ""], {"bash", "zsh", "fish"}),
        (["regatta", "show", "dig"], {"digits-1", "digits-2"}),
        (["regatta", "list", "--run", "digits-2"], {"digits-2"}),
        (["regatta", "desc", "res"], {"resnet"}),
        (["regatta", "checkout", ""], {"resnet", "mlp", "best"}),
        (["regatta", "delete", ""], {"resnet", "mlp", "best", "digits-1", "digits-2"}),
        (["regatta", "rename", "dig"], {"digits-1", "digits-2"}),
        (["regatta", "show", "digits-1", ""], set(FakeRun(configs=2).record().configs)),
    ],
)
def test_each_shell_completes_words(
    completes: Callable[[list[str], Path], list[str]], words: list[str], expected: set[str], project: Path
) -> None:
    assert set(completes(words, project)) == expected


def test_zsh_reads_the_script(project: Path) -> None:
    check = 'autoload -U compinit; compinit -D -u; eval "$SCRIPT"; whence -w _shtab_regatta _regatta_run_names'
    script = completion_script("zsh")
    found = shell(
        "zsh", f"SCRIPT=$(cat <<'END_OF_SCRIPT'\n{script}\nEND_OF_SCRIPT\n)\n{check}; _regatta_run_names", project
    )
    assert found[:4] == ["_shtab_regatta:", "function", "_regatta_run_names:", "function"]
    assert found[4:] == ["digits-1", "digits-2"]


@pytest.mark.parametrize("name", tuple(INSTALL))
def test_the_command_prints_the_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", name]) == 0
    assert capsys.readouterr().out == completion_script(name) + "\n"


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "ksh"]) == 2
    assert "bash" in capsys.readouterr().err
