"""The folder `.regatta` of a project: how it is found, and the name of every file and folder below it.

.regatta/
  catalog.sqlite            versions and their metadata; commit.lock keeps gc away from commits
  versions.log              every change of the catalog, with checksums, from which it can be made again
  staging.json              files staged for the next version, changed under staging.lock
  files/ quarantine/        files of versions, by content; damaged files that fsck replaced
  deleted/                  what was deleted, until gc: record.json, and run/ if it was a run
  data/                     partitions that Regatta wrote
  profiles/                 what profiling measured, for later sweeps
  queries/<name>.dql        saved queries
  store/                    the parameter store
    index.sqlite            what is where; users.lock is shared by all that have it open
    packs/ tmp/ quarantine/ pack files: whole, being written, put aside
    maintenance.lock        one reencode, gc, fsck or offload at a time
  runs/<name>/
    journal.jsonl           all that happened; lock is held by the controller
    sweep.pkl               the sweep, to resume and replay
    states/ logs/           states of models, output of workers
    models/                 networks and weights that its models start from, where the sweep has no model_fn
    requests/ door.json     requests to the controller, and where it listens
    keeper.lock             one process at a time moves states into the store
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from regatta.errors import NotFoundError, UsageError

FOLDER = ".regatta"

# Below the repository.
CATALOG = "catalog.sqlite"
VERSION_LOG = "versions.log"
COMMIT_LOCK = "commit.lock"
STAGING = "staging.json"
STAGING_LOCK = "staging.lock"
FILES = "files"
DELETED = "deleted"
DELETED_RECORD = "record.json"
DELETED_RUN = "run"
DATA = "data"
PROFILES = "profiles"
QUERIES = "queries"
QUERY_SUFFIX = ".dql"
STORE = "store"
RUNS = "runs"

# Below the parameter store. `tmp` is also the folder of unfinished files below `files`.
INDEX = "index.sqlite"
USERS_LOCK = "users.lock"
MAINTENANCE_LOCK = "maintenance.lock"
PACKS = "packs"
PACK_SUFFIX = ".pack"
TMP = "tmp"
QUARANTINE = "quarantine"

# Below a run, whose folder has its name.
RUN_NAME = re.compile(r"\w[\w.-]*")
MAX_RUN_NAME_BYTES = 200  # of new runs: most file systems take names of 255
JOURNAL = "journal.jsonl"
SWEEP = "sweep.pkl"
CODE = "code.json"  # of the modules that a run needs; see engine/module_code.py
RUN_LOCK = "lock"
STATES = "states"
MODELS = "models"
STATE_SUFFIX = ".safetensors"
LOGS = "logs"
MEETINGS = "meetings"  # below logs: where members of a group find each other
ARCHIVER_LOG = "keeper.log"
PREPROCESSING_LOG = "preprocessing.log"
ARCHIVER_LOCK = "keeper.lock"
REQUESTS = "requests"
ANSWER_SUFFIX = ".answer.json"
CONTROL_ADDRESS = "door.json"
GANTT_PAGE = "gantt.html"
RESULTS_CSV = "results.csv"
RESULTS_PARQUET = "results.parquet"
TENSORBOARD = "tensorboard"
MLFLOW_DATABASE = "mlflow.db"
MLFLOW_ARTIFACTS = "mlflow-artifacts"


def store_exists(store: Path) -> bool:
    """Whether there is a parameter store in that folder, even one that has lost its index."""
    return (store / INDEX).exists() or has_packs(store)


def has_packs(store: Path) -> bool:
    """Whether there are pack files in a parameter store."""
    return any((store / PACKS).glob(f"*{PACK_SUFFIX}"))


def bytes_on_disk(path: Path) -> int:
    """The disk space that a file, or a folder with everything in it, takes: what `du` says."""
    found = {}
    below = (os.path.join(here, name) for here, folders, files in os.walk(path) for name in (*folders, *files))
    for entry in (str(path), *below):
        try:
            status = os.lstat(entry)
        except FileNotFoundError:  # deleted in the meantime
            continue
        found[status.st_dev, status.st_ino] = status.st_blocks * 512  # of several names of a file, one counts
    return sum(found.values())


def state_path(run: Path, config: str, stem: str) -> Path:
    """The file of a state; the stem is `<epoch>-<visits>`."""
    return run / STATES / config / f"{stem}{STATE_SUFFIX}"


def check_run_name(name: object) -> str:
    """The name of a new run, which becomes that of its folder."""
    if not isinstance(name, str) or not RUN_NAME.fullmatch(name):
        raise UsageError(f"A run cannot be named {name!r:.100}; use letters, digits, '.', '-' and '_'.")
    if (size := len(os.fsencode(name))) > MAX_RUN_NAME_BYTES:
        raise UsageError(
            f"A run cannot be named {name:.20}...: that is {size} bytes; {MAX_RUN_NAME_BYTES} are possible."
        )
    return name


def project_folder(repository: Path) -> Path:
    """The folder that is moved or renamed together with a repository: paths below it are saved relative to it."""
    repository = Path(os.path.abspath(repository))
    return repository.parent if repository.name == FOLDER else repository


def store_beside(run: Path) -> Path:
    """The parameter store of the repository that a run belongs to."""
    return run.absolute().parent.parent / STORE


NO_REPOSITORY_HINT = "Go to your project's folder, or use --repo. `regatta init` makes one, and so does `regatta demo`."


def find_repository(start: str | Path | None = None) -> Path | None:
    """The `.regatta` of this folder or of the nearest one above it."""
    here = Path(os.path.abspath(start if start is not None else Path.cwd()))
    return next((folder / FOLDER for folder in (here, *here.parents) if (folder / FOLDER).is_dir()), None)


def repository(path: str | Path | None = None) -> Path:
    """The repository folder, which must be there: `path`, else the one found upward."""
    folder = Path(path) if path is not None else find_repository()
    if folder is None or not folder.is_dir():
        raise NotFoundError(
            f"There is no repository {'here or above' if path is None else f'at {path}'}.",
            hint=NO_REPOSITORY_HINT,
        )
    return folder


def ensure_repository(path: str | Path | None = None) -> Path:
    """The repository folder itself: `path`, else the one found upward, else a new one here; it can be written."""
    found = Path(os.path.abspath(path)) if path is not None else find_repository()
    repository = found if found is not None else Path.cwd() / FOLDER
    return writable_folder(repository, "repository folder")


def writable_folder(folder: Path, what: str) -> Path:
    """Make the folder if it is not there, and find out now, not after an hour, that it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, what, error.strerror or str(error)) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _cannot_write(folder, what, "permission denied")
    return folder


def _cannot_write(folder: Path, what: str, reason: str) -> UsageError:
    return UsageError(
        f"The {what} cannot be written: {reason}.",
        place=str(folder),
        hint="Make it writable, or start from (or name) a folder that is.",
    )
