"""Each example runs as a program, in an empty folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from locations import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SHOWN = ("jax_digits.py", "keras_digits.py")  # docs/frameworks.md has their functions, and is run among the documents


def case(example: Path) -> Any:
    return pytest.param(example, id=example.name, marks=pytest.mark.slow if example.name in SHOWN else ())


@pytest.mark.parametrize("example", [case(example) for example in EXAMPLES])
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(example)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("name", SHOWN)
def test_the_functions_that_are_shown_are_those_of_the_example(name: str) -> None:
    text = (ROOT / "examples" / name).read_text()
    functions = text[text.index("def ") : text.index("\ndata = ")].rstrip()
    assert "def model_fn" in functions
    assert functions in (ROOT / "docs" / "frameworks.md").read_text()


def test_the_demo_is_the_first_example() -> None:
    """The package carries its text, so that an installed Regatta can show and run it."""
    assert (ROOT / "examples" / "digits.py").read_text() == (ROOT / "regatta" / "cli" / "demo_sweep.py").read_text()
