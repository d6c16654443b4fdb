"""Keras on its other backends: a process each, for a backend is chosen when Keras is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("test_keras.py")


def run_on(backend: str, *options: str) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS), *options]
    done = subprocess.run(words, env={**os.environ, "KERAS_BACKEND": backend}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert done.returncode == 0, done.stdout  # not so where nothing was found to run


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_hops_are_exact_on_other_backends(backend: str) -> None:
    run_on(backend, "-k", "plain_loop")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_the_contract_holds_on_other_backends(backend: str) -> None:
    run_on(backend)
