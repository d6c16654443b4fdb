"""Each example runs as a program, in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(example)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_demo_is_the_first_example() -> None:
    """The package carries its text, so that an installed Regatta can show and run it."""
    assert (ROOT / "examples" / "digits.py").read_text() == (ROOT / "regatta" / "cli" / "digits.py").read_text()
