"""Exit codes, wrong arguments, and what `regatta --help` may cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_run import FakeRun

from regatta import __version__
from regatta.cli import main as cli
from regatta.cli.arguments import scalar
from regatta.errors import ConflictError, CorruptError, NotFoundError, RegattaError, UsageError

REGATTA = [sys.executable, "-c", "from regatta.cli.main import entry; entry()"]


def call(*words: str) -> int:
    return cli.main(list(words))


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def run(args: object) -> int:
        raise error

    monkeypatch.setattr("regatta.cli.commands.runs.runs.run", run)
    return call("runs")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RegattaError("no"), 1),
        (CorruptError("no"), 1),
        (UsageError("no"), 2),
        (NotFoundError("no"), 3),
        (ConflictError("no"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes_of_errors(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert raising(error, monkeypatch) == code


def test_an_error_of_missing_arguments_leaves_out_those_that_may_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("retry") == 2
    assert "required: RUN." in capsys.readouterr().err


def test_errors_go_to_stderr_with_place_candidates_and_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = UsageError("It is wrong.", place="sweep.py:3", candidates=["this", "that"], hint="Do one.\nThen another.")
    raising(error, monkeypatch)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == ("error: sweep.py:3: It is wrong.\n  Did you mean this or that?\n  Do one.\n  Then another.\n")


def test_an_unexpected_exception_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError("a fault of ours"), monkeypatch)


def test_the_error_for_a_misspelt_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("repaly", "digits-1") == 2
    assert "Did you mean replay" in capsys.readouterr().err


def test_the_error_for_a_misspelt_option_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("runs", "--jsno") == 2
    assert "Did you mean --json" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["run"], ["simulate", "x.py", "--workers", "4,zero"], ["show", "a", "b", "c"]])
def test_wrong_arguments_are_usage_errors(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*words) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call("--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"regatta {__version__}\n"
    assert call() == 0
    listed = capsys.readouterr().out
    _, verbs = cli.build_parser()
    assert all(f"\n  {verb} " in listed for verb in verbs)
    assert listed.index("\ntrain:") < listed.index("\ninspect:") < listed.index("\nedit versions:")


def test_every_verb_has_help_and_every_reading_one_has_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, verbs = cli.build_parser()
    assert set(verbs) >= {"demo", "run", "explain", "runs", "show", "replay", "simulate"}
    for verb in verbs:
        with pytest.raises(SystemExit):
            call(verb, "--help")
        assert verb in ("demo", "worker", "completion") or "--json" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--no-color", "runs"], ["runs", "--no-color"]])
def test_colour_can_be_forbidden_before_and_after_the_verb(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.chdir(tmp_path)
    call(*words)
    assert os.environ["NO_COLOR"] == "1"


def test_colour_marks_errors_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from regatta.cli import ui

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert ui._paint("error:", "bold red", Terminal()) == "\x1b[1;31merror:\x1b[0m"  # type: ignore[arg-type]
    monkeypatch.setenv("NO_COLOR", "1")
    assert ui._paint("error:", "bold red", Terminal()) == "error:"  # type: ignore[arg-type]


def test_a_closed_output_pipe_is_not_an_error(tmp_path: Path) -> None:
    FakeRun(configs=400, epochs=1, name="long").write(tmp_path / ".regatta" / "runs")
    words = [*REGATTA, "show", "long", "--json"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    program = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(30)\n"
    (tmp_path / "sweep.py").write_text(program)
    done = subprocess.run([*REGATTA, "explain", "sweep.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 130, signal.Signals(-done.returncode)
    assert done.stderr == "interrupted\n"


def test_advice_names_a_command_that_the_shell_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from regatta.cli.arguments import command

    installed = tmp_path / "venv" / "bin" / "regatta"
    installed.parent.mkdir(parents=True)
    installed.write_text("#!/bin/sh\n")
    installed.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(installed)])
    monkeypatch.setenv("PATH", str(installed.parent))
    assert command() == "regatta"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command() == "venv/bin/regatta"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert command() == "regatta"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (".5", 0.5),
        ("-2.", -2.0),
        (".1e-2", 0.001),
        ("1e-3", 0.001),
        ("3", 3),
        ("true", True),
        (".", "."),
        ("1.2.3", "1.2.3"),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, value: object) -> None:
    found = scalar(text)
    assert (type(found), found) == (type(value), value)
