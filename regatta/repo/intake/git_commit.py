"""The git commit around a folder, for the record of a version."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 5.0  # a commit does not wait longer for git


@dataclass(frozen=True)
class GitState:
    """Where a working tree stood; `dirty` when tracked files differed from the commit."""

    commit: str
    branch: str | None
    dirty: bool


def git_state(folder: Path) -> GitState | None:
    """The state of the git working tree around the folder; None without one, without a commit or without git."""
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
    return GitState(commit, None if branch == "(detached)" else branch, changed)
