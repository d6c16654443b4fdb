"""What several folders of tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ortools.sat.python.cp_model  # noqa: F401 (before TensorFlow, which some tests import: after it, it crashes)
import pytest
from fake_run import FakeRun

from regatta.engine import archiver
from regatta.journal.record import RunRecord


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-fixtures", action="store_true", help="write the text fixtures of commands again")


@pytest.fixture
def update_fixtures(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-fixtures"))


@pytest.fixture
def made() -> RunRecord:
    """A finished run of eight configurations: one failed, one went to NaN."""
    return FakeRun(fails=(3,), nans=(5,)).record()


@pytest.fixture
def root() -> Path:
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Results are bitwise the same only for the same number of threads, and the workers of the tests have one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No archiver beside the runs of tests, except in its own tests: it would work on after their end."""
    archiver.MAX_START_ATTEMPTS = 3 if "archiver" in item.nodeid else 0
