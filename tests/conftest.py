"""Fixtures that several folders of tests share, and how tests are run: in parallel, and leaving no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ortools.sat.python.cp_model  # noqa: F401 (before TensorFlow, which some tests import: after it, it crashes)
import pytest
from fake_run import FakeRun
from hypothesis import settings
from quick import QuickTests, is_collected, is_quick, read_list
from run_order import group_of, weight_of

from regatta.engine import archiver
from regatta.engine.workers.fork_client import THREAD_LIMITS
from regatta.engine.workers.fork_server import die_with_parent
from regatta.journal.run_record import RunRecord

RUN_VARIABLE = "REGATTA_TEST_RUN"  # in the environment of all that a test starts
WATCHDOG = Path(__file__).parent / "helpers" / "watchdog.py"


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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-fixtures", action="store_true", help="write the text fixtures of commands again")
    parser.addoption("--quick", action="store_true", help="only tests that are quick and start no process")
    parser.addoption("--write-quick-list", action="store_true", help="with --quick: find out which those are")


settings.register_profile("regatta", deadline=None)  # a busy machine is not a failure
settings.load_profile("regatta")


def pytest_configure(config: pytest.Config) -> None:
    for limit in THREAD_LIMITS:  # before PyTorch is imported: tests run in parallel, on all cores
        os.environ.setdefault(limit, "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: programs inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--quick"):
        config.pluginmanager.register(QuickTests(config))
    else:
        config.add_cleanup(_start_watchdog())


def _start_watchdog() -> Any:
    """Have all that the tests start killed, should this process be killed; the function that calls it off."""
    if sys.platform != "linux":
        return lambda: None
    os.environ[RUN_VARIABLE] = uuid.uuid4().hex
    os.register_at_fork(after_in_child=die_with_parent)
    command = [sys.executable, "-S", str(WATCHDOG), f"{RUN_VARIABLE}={os.environ[RUN_VARIABLE]}"]
    environment = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
    watchdog = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)

    def call_off() -> None:
        watchdog.communicate(b"done")

    return call_off


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Importing the files of other tests would take longer than the quick tests do."""
    if not config.getoption("--quick") or not collection_path.is_relative_to(config.rootpath / "tests"):
        return None
    name = collection_path.relative_to(config.rootpath).as_posix() + ("/" if collection_path.is_dir() else "")
    return None if name == "tests/" or is_collected(name) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the quick tests, if only those are wanted; the longest groups come first."""
    if config.getoption("--quick"):
        listed = frozenset() if config.getoption("--write-quick-list") else read_list()
        quick = [item for item in items if is_quick(item, listed)]
        config.hook.pytest_deselected(items=[item for item in items if not is_quick(item, listed)])
        items[:] = quick
    items.sort(key=weight_of)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadscope`, the tests of a group go to one process."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No archiver beside the runs of tests, except in its own tests: it would work on after their end."""
    archiver.MAX_START_ATTEMPTS = 3 if "archiver" in item.nodeid else 0
