"""`pytest --quick`: tests that take little and start no process, to be run after each change.

`quick_left_out.txt` names the tests of the quick files that take long or start a process. After changes of many tests,
`pytest --quick --write-quick-list -n auto` writes it again, by the CPU time that tests take.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

LIST = Path(__file__).parent / "quick_left_out.txt"
LONG_CPU_S = 0.15
FOLDERS_AND_FILES = (
    "tests/cli/",
    "tests/data/",
    "tests/dql/",
    "tests/engine/controller/",
    "tests/engine/planning/test_planner.py",
    "tests/engine/profiling/",
    "tests/engine/sharing/test_ledger.py",
    "tests/engine/workers/test_form_groups.py",
    "tests/engine/workers/test_inline_pool.py",
    "tests/frameworks/test_numpy.py",
    "tests/frameworks/test_state_tree.py",
    "tests/frameworks/test_torch.py",
    "tests/journal/",
    "tests/network/",
    "tests/pack/",
    "tests/plan/",
    "tests/repo/",
    "tests/search/",
    "tests/sinks/",
    "tests/store/",
    "tests/project/",
    "tests/test_",
    "tests/web/",
)
# Most of their tests start processes or take long, or they import what takes long.
NOT_COLLECTED = (
    "tests/cli/test_eval_command.py",
    "tests/cli/test_full_disk.py",
    "tests/cli/test_repo_commands.py",
    "tests/cli/test_repo_killed.py",
    "tests/cli/test_terminal.py",
    "tests/engine/controller/test_causes.py",
    "tests/engine/controller/test_chaos.py",
    "tests/engine/controller/test_control_server.py",
    "tests/engine/controller/test_exactness.py",
    "tests/engine/controller/test_faults.py",
    "tests/engine/controller/test_lost_workers.py",
    "tests/engine/controller/test_partition_owners.py",
    "tests/network/test_network_keras.py",
    "tests/pack/test_pack_recipes.py",
    "tests/plan/schedule/test_invariants.py",
    "tests/repo/evaluate/test_evaluate.py",
    "tests/repo/backup/test_backup.py",
    "tests/repo/edit/test_delete.py",
    "tests/repo/edit/test_rename.py",
    "tests/repo/intake/test_limits.py",
    "tests/repo/test_sqlite.py",
    "tests/search/test_optuna.py",
    "tests/sinks/test_mlflow.py",
    "tests/store/archive/test_archive_planner.py",
    "tests/store/attacks/",
    "tests/store/test_kill.py",
    "tests/project/test_documents.py",
    "tests/project/test_examples.py",
    "tests/web/test_gantt_page.py",
    "tests/web/test_importance.py",
    "tests/web/test_report_page.py",
)
_STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}


def is_collected(name: str) -> bool:
    """Whether a file, or a folder whose name ends in a slash, may have quick tests."""
    if name.startswith(NOT_COLLECTED):
        return False
    if name.endswith("/"):
        return any(quick.startswith(name) or name.startswith(quick) for quick in FOLDERS_AND_FILES)
    return name.startswith(FOLDERS_AND_FILES)


def is_quick(item: pytest.Item, left_out: frozenset[str]) -> bool:
    slow = item.get_closest_marker("slow") or item.get_closest_marker("gpu")
    return not slow and function_of(item) not in left_out


def read_list() -> frozenset[str]:
    return frozenset(LIST.read_text().splitlines())


def function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0].partition("@")[0]


class QuickTests:
    """A plugin that skips tests that start a process, and notes which do or take long."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._running: str | None = None
        self._left_out: set[str] = set()
        sys.addaudithook(self._check)

    def _check(self, event: str, arguments: object) -> None:
        if self._running is not None and event in _STARTS:
            self._left_out.add(self._running)
            raise pytest.skip.Exception(f"it starts a process ({event}): it belongs into {LIST.name}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        begin = time.process_time()
        with self._tested(function_of(item)):
            result = yield
        if time.process_time() - begin > LONG_CPU_S:
            self._left_out.add(function_of(item))
        return result

    @contextmanager
    def _tested(self, function: str) -> Iterator[None]:
        self._running = function
        try:
            yield
        finally:
            self._running = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._left_out |= set(node.workeroutput["left_out"])

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["left_out"] = sorted(self._left_out)
        elif self._config.getoption("--write-quick-list"):
            LIST.write_text("".join(f"{function}\n" for function in sorted(self._left_out)))
