"""The messages between a controller and its workers: plain data, the same for every kind of worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from regatta.configuration import Scalar
from regatta.errors import UsageError

if TYPE_CHECKING:
    from regatta.data.dataset_choice import PartitionPaths
    from regatta.data.sharing import Sharing


@dataclass(frozen=True)
class Recipe:
    """The user's functions: how a configuration becomes a model, and how that is trained and evaluated."""

    model_fn: Callable[..., Any]
    loss_fn: Callable[..., Any] | None = None
    train_fn: Callable[..., Any] | None = None
    input_fn: Callable[..., Any] | None = None
    eval_fn: Callable[..., Any] | None = None
    framework: str = "auto"
    transform_fn: Callable[..., Any] | None = None


@dataclass(frozen=True)
class SharingPlan:
    """The preprocessing that is shared in a run: for how many models and epochs, and by which functions."""

    settings: Sharing
    models: int
    epochs: int
    reads: bool  # there is an input_fn: its results are shared too
    transforms: bool  # there is a transform_fn


@dataclass(frozen=True)
class WorkerSetup:
    """What every worker of a run receives before its first task."""

    recipe_or_pickle: Recipe | bytes  # pickled if the controller does not use it
    seed: int
    train: tuple[Path, ...]
    eval: tuple[Path, ...]
    logs: Path  # the folder for the output of workers
    sharing: SharingPlan | None = None
    choice: PartitionPaths | None = None  # of all data sets, where the configurations have several

    def place(self, kind: Literal["train", "eval"], values: Mapping[str, Scalar], partition: int) -> int:
        """The number under which `path` knows a partition of a configuration."""
        return partition if self.choice is None else self.choice.place(kind, values, partition)

    def path(self, kind: Literal["train", "eval"], place: int) -> Path:
        paths = self.choice or {"train": self.train, "eval": self.eval}
        return paths[kind][place]

    @cached_property
    def recipe(self) -> Recipe:
        return unpickle_recipe(self.recipe_or_pickle)


def unpickle_recipe(recipe: Recipe | bytes) -> Recipe:
    """The user's functions, with the modules that they need; bytes come from this run's own controller."""
    if isinstance(recipe, Recipe):
        return recipe
    from regatta.journal.unpickle import unpickle

    try:
        found: Recipe = unpickle(recipe)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The functions of the sweep need the module {error.name!r}, which is not found from here.",
            hint="Go to the folder from which it was launched, or put that module's folder on PYTHONPATH.",
        ) from error
    return found


@dataclass(frozen=True)
class Address:
    """Where the members of a group on several nodes find each other: at its first member, under a unique name."""

    host: str  # and port
    name: str


@dataclass(frozen=True)
class GroupRank:
    """The place of a worker in a group that does a task together."""

    meeting: Path | Address  # the file or address through which its members find each other
    rank: int
    width: int
    backend: Literal["gloo", "nccl"] = "gloo"
    nodes: int = 1  # on which its members run


@dataclass(frozen=True)
class Task:
    """One task for one worker. A pilot task profiles a model on a few batches and writes no state."""

    kind: Literal["train", "eval", "pilot"]
    config: str
    values: Mapping[str, Scalar]
    epoch: int
    partition: int
    state_in: Path | None = None  # None: a new model
    state_out: Path | None = None
    ends_epoch: bool = False
    eval_partition: int | None = None  # on which a profiling task also measures evaluation
    parent: Mapping[str, Scalar] | None = None  # the values of the configuration whose state it starts from
    packed_with: tuple[Task, ...] = ()  # the same unit for the other members of its pack
    group_rank: GroupRank | None = None  # None: the worker does the task alone


@dataclass(frozen=True)
class WorkerReady:
    worker: str
    info: dict[str, Any]  # pid, device, threads, memory; for a group also its width and the pids of its members


@dataclass(frozen=True)
class TaskDone:
    """A task is finished. Other workers can read the state of a training unit, which may not be durable yet."""

    worker: str
    task: Task
    start: float
    end: float
    rows: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    hop_bytes: int = 0
    hop_seconds: float = 0.0
    load_seconds: float = 0.0
    save_seconds: float = 0.0
    sync_seconds: float = 0.0
    width: int = 1
    warnings: tuple[str, ...] = ()  # for users, once in a run
    profile: ModelProfile | None = None
    pack_profile: PackProfile | None = None
    group_profile: GroupProfile | None = None


@dataclass(frozen=True)
class PackProfile:
    """What a few batches of several models, trained side by side, have shown."""

    build: str
    members: int
    gain: float  # how many times as fast as one after another
    reason: str
    fixed: float = 0.0  # seconds per unit and member, for putting the member into the pack


@dataclass(frozen=True)
class GroupProfile:
    """What a few batches trained by a group of workers have shown."""

    build: str
    width: int
    ratio: float  # of communication to computation


@dataclass(frozen=True)
class ModelProfile:
    """What a few batches of one model have shown: seconds per row and per unit, sizes, and names of metrics."""

    train_seconds_per_row: float
    eval_seconds_per_row: float
    train_rows: int  # of the partition that was used
    eval_rows: int
    fixed_seconds: float
    state_bytes: int
    metrics: tuple[str, ...]
    forgotten: tuple[str, ...] = ()  # attributes that training changes and no state holds
    build: str = ""  # models with the same build may be trained as a pack; "": never
    prepare_seconds_per_row: float = 0.0  # in transform_fn
    peak_bytes: int = 0  # the most memory that it takes on its device
    eval_fixed_seconds: float | None = None  # per evaluated partition; None: as much as for training
    unsharable: bool = False  # no block can hold its transformed data


@dataclass(frozen=True)
class TaskBegun:
    """A worker has its data, and now calls the functions that build and train the model."""

    worker: str


Cause: TypeAlias = Literal["model", "data", "environment"]


@dataclass(frozen=True)
class TaskFailed:
    """A task raised an error, and its worker goes on. What the error says about the configuration is its cause.

    model: the configuration fails. data: the worker cannot read or transform the partition, for any model.
    environment: a file, module or connection that the functions need is missing.
    """

    worker: str
    task: Task
    start: float
    end: float
    error: str
    traceback: str
    disk: bool = False  # the disk does not take the state: no configuration is to blame
    echo: bool = False  # another member of its group failed and reports why
    cause: Cause = "model"


@dataclass(frozen=True)
class PackDone:
    """The task of a pack is finished. Each part is one member with its share of the time."""

    worker: str
    task: Task
    start: float
    end: float
    parts: tuple[TaskDone | TaskFailed, ...]
    notes: tuple[str, ...] = ()  # members that were put back to an earlier step, and why


def published(event: object) -> list[Path]:
    """The states of an event that can be read and are not durable yet."""
    parts = event.parts if isinstance(event, PackDone) else (event,)
    states = [part.task.state_out for part in parts if isinstance(part, TaskDone)]
    return [state for state in states if state is not None]


@dataclass(frozen=True)
class StateDurable:
    worker: str
    path: Path
    hash: str
    bytes: int


@dataclass(frozen=True)
class StateLost:
    """A published state was lost before it was durable: its unit is done again. No task from it runs or has ended."""

    worker: str
    path: Path


@dataclass(frozen=True)
class TaskReturned:
    """A worker returns its task undone, because it could not get the state that the task starts from."""

    worker: str
    task: Task


@dataclass(frozen=True)
class DiskFull:
    """A worker cannot make a state durable and keeps trying: no new units until the disk has room."""

    worker: str
    error: str


@dataclass(frozen=True)
class WorkerLost:
    """A worker is gone, and with it its task."""

    worker: str
    reason: str
    for_good: bool = False  # it will not come back
    killed: bool = False  # from outside: by a user or another program, and not because memory ran out


Event: TypeAlias = (
    WorkerReady
    | TaskBegun
    | TaskDone
    | TaskFailed
    | PackDone
    | StateDurable
    | StateLost
    | TaskReturned
    | DiskFull
    | WorkerLost
)
