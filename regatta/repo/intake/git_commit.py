"""The git commit around a folder, for the record of a version."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

_TIMEOUT_S = 5.0  # a commit does not wait longer for git


def git_state(folder: Path) -> dict[str, Any] | None:
    """The state of the git working tree around the folder; None without one, without a commit or without git.

    It is "dirty" if tracked files differ from the commit.
    """
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    lines = done.stdout.decode(errors="replace").splitlines()
    fields = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch.") and " " in line[2:])
    commit, branch = fields.get("branch.oid", "(initial)"), fields.get("branch.head", "(detached)")
    if commit == "(initial)":
        return None
    changed = any(not line.startswith("#") for line in lines)
    return {"commit": commit, "branch": None if branch == "(detached)" else branch, "dirty": changed}
