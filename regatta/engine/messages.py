"""What a controller and its workers say to each other: plain data, the same for every kind of worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from regatta.configuration import Scalar
from regatta.errors import UsageError

if TYPE_CHECKING:
    from regatta.data.sharing import Sharing


@dataclass(frozen=True)
class Recipe:
    """The user's functions: how a configuration becomes a model and how it is trained and judged."""

    model_fn: Callable[..., Any]
    loss_fn: Callable[..., Any] | None = None
    train_fn: Callable[..., Any] | None = None
    input_fn: Callable[..., Any] | None = None
    eval_fn: Callable[..., Any] | None = None
    framework: str = "auto"
    transform_fn: Callable[..., Any] | None = None


@dataclass(frozen=True)
class SharingPlan:
    """What is shared in a run: the blocks of how many models, over how many epochs, and what they are made of."""

    settings: Sharing
    models: int
    epochs: int
    reads: bool  # there is an input_fn, whose results are blocks too
    transforms: bool

    @property
    def reads_for_all(self) -> bool:
        """Whether workers get even what is only read from others."""
        return self.reads and self.settings.always is True


@dataclass(frozen=True)
class WorkerSetup:
    """What every worker of a run is given before its first task."""

    recipe_or_pickle: Recipe | bytes  # pickled, where the controller itself has no use for it
    seed: int
    train: tuple[Path, ...]
    eval: tuple[Path, ...]
    logs: Path  # the folder for what workers print
    sharing: SharingPlan | None = None

    @cached_property
    def recipe(self) -> Recipe:
        return unpickle_recipe(self.recipe_or_pickle)


def unpickle_recipe(recipe: Recipe | bytes) -> Recipe:
    """The user's functions, with all that they import; bytes come from our own controller."""
    if isinstance(recipe, Recipe):
        return recipe
    from regatta.unpickle import unpickle

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
    """Where a group meets whose members may be on several nodes: at its first member, under a name of its own."""

    host: str  # with the port
    name: str


@dataclass(frozen=True)
class GroupRank:
    """A worker's place in a group that does a task together."""

    meeting: Path | Address  # through which file, or at which address, its members find each other
    rank: int
    width: int
    backend: Literal["gloo", "nccl"] = "gloo"
    nodes: int = 1  # that they are on


@dataclass(frozen=True)
class Task:
    """One thing for one worker to do. A pilot measures a few batches and leaves nothing behind."""

    kind: Literal["train", "eval", "pilot"]
    config: str
    values: Mapping[str, Scalar]
    epoch: int
    partition: int
    state_in: Path | None = None  # None: the model is new
    state_out: Path | None = None
    ends_epoch: bool = False
    eval_partition: int | None = None  # on which a profiling task also measures evaluation
    parent: Mapping[str, Scalar] | None = None  # the values of the configuration whose state it begins with
    packed_with: tuple[Task, ...] = ()  # the same unit for the other members of its pack
    group_rank: GroupRank | None = None  # None: the worker does it alone


@dataclass(frozen=True)
class WorkerReady:
    worker: str
    info: dict[str, Any]  # pid, device, threads, memory; of a group also its width and the pids of its members


@dataclass(frozen=True)
class TaskDone:
    """A task is finished; of a training unit, the state can be read by others but need not be durable yet."""

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
    profile: ModelProfile | None = None
    pack_profile: PackProfile | None = None
    group_profile: GroupProfile | None = None


@dataclass(frozen=True)
class PackProfile:
    """What a few batches of several models side by side tell."""

    build: str
    members: int
    gain: float  # steps are so many times as fast as one after another
    reason: str
    fixed: float = 0.0  # seconds of a unit for each member, to put it among the others


@dataclass(frozen=True)
class GroupProfile:
    """What a few batches by a group of workers tell."""

    build: str
    width: int
    ratio: float  # of communication to computation


@dataclass(frozen=True)
class ModelProfile:
    """What a few batches tell: seconds per row, what a unit costs besides, the size of a state, names of metrics."""

    train_seconds_per_row: float
    eval_seconds_per_row: float
    train_rows: int  # of the partitions that were tried
    eval_rows: int
    fixed_seconds: float
    state_bytes: int
    metrics: tuple[str, ...]
    forgotten: tuple[str, ...] = ()  # what training changes and no state keeps
    build: str = ""  # models of one build may be trained as a pack; "": this one may not
    prepare_seconds_per_row: float = 0.0  # of transform_fn
    peak_bytes: int = 0  # that it takes of its device at most
    eval_fixed_seconds: float | None = None  # what evaluating a partition costs besides; None: as much as training
    unsharable: bool = False  # what is transformed is such that no block holds it


@dataclass(frozen=True)
class TaskFailed:
    """The user's code, or what it made of its input, raised: the fault of the configuration, not of the worker."""

    worker: str
    task: Task
    start: float
    end: float
    error: str
    traceback: str
    disk: bool = False  # it does not take the state: nobody's fault, and no other configuration would fare better
    echo: bool = False  # another member of its group failed, and says why


@dataclass(frozen=True)
class PackDone:
    """The task of a pack is finished: what became of each member, which has its share of the time."""

    worker: str
    task: Task
    start: float
    end: float
    parts: tuple[TaskDone | TaskFailed, ...]


def published(event: object) -> list[Path]:
    """The states that can be read now, and are not durable yet."""
    parts = event.parts if isinstance(event, PackDone) else (event,)
    states = [part.task.state_out for part in parts if isinstance(part, TaskDone)]
    return [state for state in states if state is not None]


@dataclass(frozen=True)
class StateDurable:
    """A state that a worker published is on the disk now."""

    worker: str
    path: Path
    hash: str
    bytes: int


@dataclass(frozen=True)
class StateLost:
    """A state that a worker published is gone before it was durable: the unit that made it is to be done again.

    No task that began with it runs any more, and none has finished.
    """

    worker: str
    path: Path


@dataclass(frozen=True)
class TaskReturned:
    """A worker gives its task back undone, because the state that it begins with could not be had."""

    worker: str
    task: Task


@dataclass(frozen=True)
class DiskFull:
    """A worker cannot make a state durable now, and tries again: no new units until there is room."""

    worker: str
    error: str


@dataclass(frozen=True)
class WorkerLost:
    """A worker is gone, and with it the task it had: not the fault of a configuration."""

    worker: str
    reason: str
    for_good: bool = False  # it will not come back


Event: TypeAlias = (
    WorkerReady | TaskDone | TaskFailed | PackDone | StateDurable | StateLost | TaskReturned | DiskFull | WorkerLost
)
