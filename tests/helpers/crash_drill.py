"""Kill a process, by SIGKILL, at a chosen step that touches the disk.

A step is a block written to a pack file, an fsync, a rename, a deletion or an SQL statement. There are two moments for
each step, just before it and just after it. A drill is a script that kills an operation at every k-th moment and
prints, as JSON, what was wrong afterwards; `run_drill` starts one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from regatta.store import folder as store_folder
from regatta.store.database import Database

STEPS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (os, "replace"),
    (os, "unlink"),
    (Path, "unlink"),
    (Database, "_run"),
    (store_folder.PackWriter, "_write"),
]


def arm(deadly: int, steps: list[tuple[Any, str]] = STEPS) -> None:
    """Make this process die at that moment, counted from now."""
    moments = count()

    def moment() -> None:
        if next(moments) == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            moment()
            result = original(*args, **options)
            moment()
            return result

        return step

    for owner, name in steps:
        setattr(owner, name, wrap(getattr(owner, name)))


def finishes(work: Callable[[], None], what: str) -> bool:
    """Run `work`, which calls `arm`, in a forked process; whether it got to the end."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"{what} failed by itself.")
    return os.WIFEXITED(status)


def run_drill(script: Path, folder: Path, every: int) -> Any:
    """What a drill prints."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(script), str(folder), str(every)]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, check=True, timeout=1200, stdout=subprocess.PIPE, env=environment)
    return json.loads(done.stdout)
