"""A repository can be opened in a process that TensorFlow was loaded in first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """import tensorflow
from regatta import Repo
with Repo.init({folder!r}) as repo:
    repo.commit("model", git=False)
    print(len(repo.versions(search="model")))"""


def test_the_catalog_uses_the_sqlite_of_python(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    script = SCRIPT.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout == "1\n", done.stderr
