"""The repository of AlexNets, made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from alexnets import make_alexnets

from regatta.repo import Repo


@pytest.fixture(scope="session")
def alexnets_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alexnets")
    make_alexnets(folder)
    return folder


@pytest.fixture
def alexnets(alexnets_folder: Path) -> Iterator[Repo]:
    """For tests that only read."""
    with Repo.open(alexnets_folder, read_only=True) as repo:
        yield repo


@pytest.fixture
def own_alexnets(alexnets_folder: Path, tmp_path: Path) -> Iterator[Repo]:
    """A copy, for tests that write."""
    shutil.copytree(alexnets_folder, tmp_path / "project")
    with Repo.open(tmp_path / "project") as repo:
        yield repo
