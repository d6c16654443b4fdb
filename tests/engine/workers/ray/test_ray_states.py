"""What a pool of Ray workers does about states when workers come and go; without any worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from regatta.engine.messages import StateDurable, StateLost, Task, TaskReturned
from regatta.engine.workers.ray.states import LiveActor, StateTracker, TrackedState

A, B, C = (Path(f"0001-00{n}.safetensors") for n in (1, 2, 3))
JUDGES = 2


class Harness:
    """StateTracker, the workers that may keep them, and those that were asked to."""

    def __init__(self, *names: str, budget: float = 1e9) -> None:
        self.members = {name: LiveActor(name, None, None, ready=True) for name in names}
        self.asked: list[tuple[str, Path]] = []
        self.states = StateTracker(self.members, lambda s, m: self.asked.append((m.name, s.path)), JUDGES, budget)

    def make(self, path: Path, worker: str, before: Path | None = None, ends_epoch: bool = False) -> TrackedState:
        state = TrackedState(path, worker, object(), ends_epoch, before)
        self.states.add(state, self.members[worker])
        return state

    def persisted(self, state: TrackedState, worker: str, size: int | None = 10) -> list[Any]:
        kept = None if size is None else StateDurable(worker, state.path, "hash", size)
        return self.states.on_persisted(state, self.members[worker], kept)

    def die(self, worker: str) -> list[Any]:
        return self.states.on_death(self.members.pop(worker))

    def begin(self, worker: str, state: TrackedState) -> Task:
        member = self.members[worker]
        member.task = task_from(state.path)
        member.held.add(state.path)
        return member.task


def task_from(state: Path, kind: Literal["train", "eval"] = "train") -> Task:
    return Task(kind, "config", {}, 1, 0, state, None if kind == "eval" else Path("next"))


def test_a_state_is_persisted_by_its_worker_and_reported_once() -> None:
    harness = Harness("w0", "w1")
    state = harness.make(A, "w0")
    assert harness.asked == [("w0", A)]
    assert not harness.states.is_safe(A)
    assert harness.persisted(state, "w0") == [StateDurable("w0", A, "hash", 10)]
    assert harness.states.is_safe(A)
    assert harness.persisted(state, "w0") == []


def test_a_worker_that_has_a_state_persists_it() -> None:
    harness = Harness("w0", "w1", "w2")
    harness.make(A, "w0")
    harness.members["w2"].held.add(A)
    assert harness.die("w0") == []
    assert harness.asked[1:] == [("w2", A)]


def test_a_state_is_lost_when_no_worker_can_fetch_it() -> None:
    harness = Harness("w0", "w1", "w2")
    state = harness.make(A, "w0")
    harness.members["w2"].held.add(A)  # it was asked to fetch the state, and has not yet
    harness.die("w0")
    assert harness.persisted(state, "w2", None) == [StateLost("w0", A)]
    assert harness.states.get(A) is None


def test_a_new_worker_persists_a_state_if_there_was_no_other() -> None:
    harness = Harness("w0")
    state = harness.make(A, "w0")
    assert harness.die("w0") == []
    assert harness.states.rescue_all() == []
    harness.members["w1"] = LiveActor("w1", None, None, ready=True)
    assert harness.states.rescue_all() == []
    assert harness.asked[1:] == [("w1", A)]
    assert harness.persisted(state, "w1") == [StateDurable("w1", A, "hash", 10)]


def test_a_worker_whose_task_fetched_a_state_persists_it() -> None:
    """The reference leads nowhere, but a worker had fetched the state before: it is not lost."""
    harness = Harness("w0", "w1", "w2")
    state = harness.make(A, "w0")
    task = harness.begin("w1", state)
    harness.die("w0")
    assert harness.asked[1:] == [("w1", A)]
    assert harness.persisted(state, "w1", None) == [], "w1 is still at it"
    harness.members["w1"].task = None
    harness.members["w1"].held.add(A)
    assert harness.states.used(state, task) == []
    assert harness.asked[-1] == ("w1", A)
    assert harness.persisted(state, "w1") == [StateDurable("w1", A, "hash", 10)]


@pytest.mark.parametrize("size", [10, None])
def test_a_returned_task_goes_back_when_the_fate_of_its_state_is_known(size: int | None) -> None:
    harness = Harness("w0", "w1")
    state = harness.make(A, "w0")
    returned = TaskReturned("w1", harness.begin("w1", state))
    harness.members["w1"].task = None
    harness.members["w1"].held.discard(A)
    assert harness.states.give_back(state, returned) == [], "w0 is making it durable"
    harness.die("w0")
    assert harness.asked[-1] == ("w1", A)
    fate = StateLost("w0", A) if size is None else StateDurable("w1", A, "hash", 10)
    expected = [returned, fate] if size is None else [fate, returned]
    assert harness.persisted(state, "w1", size) == expected


def test_a_dead_worker_does_not_delay_the_report_of_a_loss() -> None:
    harness = Harness("w0", "w1", "w2")
    state = harness.make(A, "w0")
    harness.begin("w1", state)
    harness.die("w0")
    assert harness.persisted(state, harness.asked[-1][0], None) == []
    assert harness.die("w1") == [StateLost("w0", A)]


def test_states_are_released_when_followed_and_evaluated() -> None:
    harness = Harness("w0")
    first, second = harness.make(A, "w0"), harness.make(B, "w0", before=A, ends_epoch=True)
    harness.persisted(first, "w0")
    assert harness.states.get(A) is first
    harness.persisted(second, "w0")
    assert harness.states.get(A) is None
    harness.persisted(harness.make(C, "w0", before=B), "w0")
    for _ in range(JUDGES):
        assert harness.states.get(B) is second
        harness.states.used(second, task_from(B, "eval"))
    assert harness.states.get(B) is None


def test_states_are_released_when_the_object_store_is_full() -> None:
    harness = Harness("w0", budget=25)
    made = [harness.make(path, "w0", ends_epoch=True) for path in (A, B, C)]
    for state in made[:2]:
        harness.persisted(state, "w0")
    assert harness.states.get(A) is made[0]
    harness.persisted(made[2], "w0")
    assert [harness.states.get(path) for path in (A, B, C)] == [None, *made[1:]]


def test_a_state_that_is_not_durable_is_not_forgotten() -> None:
    harness = Harness("w0")
    state = harness.make(A, "w0")
    harness.states.forget(A)
    assert harness.states.get(A) is state
    harness.persisted(state, "w0")
    assert harness.states.get(A) is None
