"""Which workers are in a group together, and what becomes of those whose group is lost; without any worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regatta.engine.messages import (
    Address,
    Event,
    StateDurable,
    Task,
    TaskDone,
    TaskFailed,
    TaskReturned,
    WorkerLost,
    WorkerReady,
)
from regatta.engine.workers.groups import GroupPool, form_groups
from regatta.errors import RegattaError

STATE = Path("0001-001.safetensors")
TASK = Task("train", "c", {}, 1, 0, None, STATE)


@pytest.mark.parametrize(
    ("nodes", "width", "groups"),
    [
        ("aabb", 2, "01 23"),
        ("abab", 2, "02 13"),
        ("abc", 2, "01"),
        ("aaabbbcd", 4, "0126 3457"),
        ("aaaaabbb", 2, "01 23 47 56"),
        ("ab", 3, ""),
        ("aaaaaaaaaaab", 6, "012345 6789AB"),
    ],
)
def test_groups_are_formed_inside_nodes_first(nodes: str, width: int, groups: str) -> None:
    placed = {f"w{number}": node for number, node in enumerate(nodes)}
    expected = [tuple(f"w{int(digit, 16)}" for digit in group) for group in groups.split()]
    for order in (placed, dict(reversed(placed.items()))):
        assert sorted(tuple(sorted(group, key=lambda w: int(w[1:]))) for group in form_groups(order, width)) == expected


class Script:
    """A pool that returns scripted events, and records its calls."""

    packs = False

    def __init__(self, workers: int) -> None:
        self.workers = tuple(f"w{number}" for number in range(workers))
        self.lines: list[list[Event]] = []
        self.given: dict[str, Task] = {}
        self.ended: dict[str, str] = {}

    def start(self) -> None: ...

    def submit(self, worker: str, task: Task) -> None:
        self.given[worker] = task

    def prefetch(self, worker: str, state: Path) -> None: ...

    def forget(self, state: Path) -> None: ...

    def end(self, worker: str, reason: str) -> None:
        self.ended[worker] = reason

    def admit(self, connection: Any, wishes: dict[str, Any]) -> None: ...

    def share(self, yes: bool) -> None: ...

    def events(self) -> list[Event]:
        return self.lines.pop(0)

    def wake(self) -> None: ...

    def close(self) -> None: ...


class Stage:
    """Groups of two over such a pool."""

    def __init__(self, folder: Path, workers: int = 4, wait_for_workers: bool = True) -> None:
        self.script = Script(workers)
        self.pool = GroupPool(self.script, 2, folder / "meetings", wait_for_workers=wait_for_workers)
        self.pool.start()

    def hear(self, *events: Event) -> list[Event]:
        """What the groups say when their members say this."""
        self.script.lines = [list(events), []]
        self.pool.wake()
        return self.pool.events()

    def enter(self, **nodes: str) -> list[Event]:
        return [event for worker, node in nodes.items() for event in self.hear(ready(worker, node))]

    def answer(self, worker: str, kind: type, **fields: Any) -> Event:
        task = self.script.given[worker]
        if kind is TaskFailed:
            fields = {"error": "no", "traceback": "", **fields}
        times = {} if kind is TaskReturned else {"start": 0.0, "end": 1.0}
        event: Event = kind(worker, task, **times, **fields)
        return event


def ready(worker: str, node: str, **info: Any) -> WorkerReady:
    info = {"device": "cpu", "pid": int(worker[1:]), "address": f"{node}:1{worker[1:]}", **info}
    return WorkerReady(worker, {"node": node, **info})


def members(event: Event) -> tuple[str, list[str], int]:
    assert isinstance(event, WorkerReady)
    return event.worker, list(event.info["members"]), event.info["nodes"]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.pool.close()


def test_groups_form_when_the_nodes_of_all_are_known(stage: Stage) -> None:
    assert stage.pool.workers == ("g0", "g1")
    assert stage.enter(w3="b", w0="a", w1="b") == []
    one, other = stage.enter(w2="a")
    assert members(one) == ("g0", ["w0", "w2"], 1)
    assert members(other) == ("g1", ["w1", "w3"], 1)
    assert "address" not in one.info  # type: ignore[union-attr]


def test_members_meet_at_the_first_member_and_know_their_nodes(stage: Stage) -> None:
    stage.enter(w0="a", w1="a", w2="b", w3="c")
    stage.pool.submit("g0", TASK)
    stage.pool.submit("g1", TASK)
    near, far = stage.script.given["w0"].group_rank, stage.script.given["w3"].group_rank
    assert near is not None
    assert far is not None
    assert isinstance(near.meeting, Address)
    assert isinstance(far.meeting, Address)
    assert (near.meeting.host, near.rank, near.width, near.nodes) == ("a:10", 0, 2, 1)
    assert (far.meeting.host, far.rank, far.width, far.nodes) == ("b:12", 1, 2, 2)
    assert [stage.script.given[worker].state_out for worker in ("w0", "w1")] == [STATE, None]


@pytest.mark.parametrize(
    ("one", "other", "backend"),
    [
        ({"device": "cuda:0", "gpu": "0"}, {"device": "cuda:0", "gpu": "1"}, "nccl"),
        ({"device": "cuda:0", "gpu": "0"}, {"device": "cuda:0", "gpu": "0"}, "gloo"),
        ({"device": "cuda:0", "gpu": "0"}, {"device": "cuda:0", "gpu": "0", "node": "b"}, "nccl"),
        ({"device": "cuda:0", "gpu": "0"}, {"device": "cpu"}, "gloo"),
    ],
)
def test_nccl_needs_a_gpu_for_each_member(tmp_path: Path, one: Any, other: Any, backend: str) -> None:
    stage = Stage(tmp_path, workers=2)
    stage.hear(ready("w0", **{"node": "a", **one}), ready("w1", **{"node": "a", **other}))
    stage.pool.submit("g0", TASK)
    assert [task.group_rank.backend for task in stage.script.given.values() if task.group_rank] == [backend] * 2
    stage.pool.close()


def test_workers_too_few_for_a_group_stay_idle_and_are_reported(stage: Stage) -> None:
    stage.enter(w0="a", w1="a", w2="b")
    formed, vacant = stage.hear(WorkerLost("w3", "was lost with its node", for_good=True))
    assert members(formed) == ("g0", ["w0", "w1"], 1)
    assert vacant == WorkerLost("g1", "has no members: w3 was lost with its node; w2 stays idle", for_good=True)
    (late,) = stage.enter(w3="c")
    assert members(late) == ("g1", ["w2", "w3"], 2)


def test_members_of_lost_groups_form_another(stage: Stage) -> None:
    """Of two groups over four nodes, each loses one."""
    stage.enter(w0="a", w1="b", w2="c", w3="d")
    lost = stage.hear(WorkerLost("w0", "was lost with its node", for_good=True))
    assert lost == [WorkerLost("g0", "lost w0, which was lost with its node", for_good=True)]
    assert stage.script.ended == {"w1": "was ended: g0 lost w0"}
    assert stage.hear(WorkerLost("w1", "was ended: g0 lost w0", for_good=True)) == []
    assert stage.enter(w1="b") == []
    assert len(stage.hear(WorkerLost("w2", "was lost with its node", for_good=True))) == 1
    assert stage.hear(WorkerLost("w3", "was ended: g1 lost w2")) == []
    (formed,) = stage.enter(w3="d")
    assert members(formed) == ("g0", ["w1", "w3"], 2)


def test_a_group_whose_member_comes_back_is_the_same_group(stage: Stage) -> None:
    stage.enter(w0="a", w1="a", w2="b", w3="b")
    stage.pool.submit("g1", TASK)
    before = stage.script.given["w2"].group_rank
    assert stage.hear(WorkerLost("w3", "died")) == [WorkerLost("g1", "lost w3, which died")]
    assert stage.hear(WorkerLost("w2", "was ended")) == []
    (again,) = stage.enter(w3="c", w2="b")
    assert members(again) == ("g1", ["w2", "w3"], 2)
    stage.pool.submit("g1", TASK)
    assert before is not None
    assert stage.script.given["w2"].group_rank != before
    late = replace(stage.answer("w2", TaskReturned), task=replace(TASK, group_rank=before))  # type: ignore[type-var]
    assert stage.hear(late, stage.answer("w3", TaskDone)) == []
    (done,) = stage.hear(stage.answer("w2", TaskDone))
    assert (done.worker, type(done)) == ("g1", TaskDone)


def test_joining_workers_form_their_own_groups(stage: Stage) -> None:
    stage.enter(w0="a", w1="a", w2="b", w3="b", w4="c")
    (joined,) = stage.enter(w5="d")
    assert members(joined) == ("g2", ["w4", "w5"], 2)


def test_adopted_workers_need_not_be_all(stage: Stage) -> None:
    there = [ready("w0", "a"), ready("w1", "b"), ready("w3", "b")]
    formed, vacant = stage.pool.adopt({event.worker: event for event in there})
    assert members(formed) == ("g0", ["w1", "w3"], 1)
    assert vacant == WorkerLost("g1", "has no members: w0 stays idle", for_good=True)


def test_new_groups_of_the_same_workers_use_new_meetings(tmp_path: Path) -> None:
    there, meetings, script = {f"w{n}": ready(f"w{n}", "a") for n in range(4)}, [], Script(4)
    for width in (2, 4, 2):
        pool = GroupPool(script, width, tmp_path / "meetings")
        assert len(pool.adopt(there)) == 4 // width
        pool.submit("g0", TASK)
        meetings.append(script.given["w0"].group_rank.meeting)  # type: ignore[union-attr]
        there = pool.release()
    assert len(set(meetings)) == 3


def test_events_of_states_are_passed_on(stage: Stage) -> None:
    """A worker in no group may have to persist the state of a dead worker."""
    stage.enter(w0="a", w1="a", w2="b", w3="b", w4="c")
    assert stage.hear(StateDurable("w4", STATE, "hash", 1)) == [StateDurable("w4", STATE, "hash", 1)]
    stage.pool.submit("g0", TASK)
    done, durable = stage.answer("w0", TaskDone), StateDurable("w0", STATE, "hash", 1)
    assert stage.hear(done, durable) == [], "the other member has not answered"
    *_, event = stage.hear(stage.answer("w1", TaskDone))
    assert event == replace(durable, worker="g0")


def test_an_echo_is_not_the_reason_of_a_failure(stage: Stage) -> None:
    """It only heard that the connection ended; which worker died is known later."""
    stage.enter(w0="a", w1="a", w2="b", w3="b")
    stage.pool.submit("g0", TASK)
    assert stage.hear(stage.answer("w1", TaskFailed, echo=True)) == []
    assert stage.hear(WorkerLost("w0", "died")) == [WorkerLost("g0", "lost w0, which died")]


def test_members_that_lost_each_other_are_ended(stage: Stage) -> None:
    stage.enter(w0="a", w1="b", w2="c", w3="d")
    stage.pool.submit("g0", TASK)
    both = [stage.answer(worker, TaskFailed, echo=True, error="no route") for worker in ("w0", "w1")]
    assert stage.hear(*both) == []
    assert stage.script.ended == {"w0": "was ended: no route"}
    (lost,) = stage.hear(WorkerLost("w0", "was ended: no route"))
    assert lost == WorkerLost("g0", "lost w0, which was ended: no route")
    assert "w1" in stage.script.ended


def test_a_task_is_returned_if_one_member_cannot_get_its_state(stage: Stage) -> None:
    stage.enter(w0="a", w1="b", w2="c", w3="d")
    stage.pool.submit("g0", TASK)
    events = stage.hear(stage.answer("w0", TaskFailed, echo=True), stage.answer("w1", TaskReturned))
    assert events == [TaskReturned("g0", TASK)]


def test_no_group_is_left(tmp_path: Path) -> None:
    stage = Stage(tmp_path, workers=4, wait_for_workers=False)
    stage.enter(w0="a", w1="a", w2="a", w3="a")
    for worker, other in (("w0", "w1"), ("w2", "w3")):
        assert len(stage.hear(WorkerLost(worker, "fell apart", for_good=True))) == 1
        stage.hear(WorkerLost(other, "was ended"))
    (formed,) = stage.enter(w1="a", w3="a")
    assert members(formed) == ("g0", ["w1", "w3"], 1)
    with pytest.raises(RegattaError, match="No group of workers is left: g0 lost w1, which fell apart"):
        stage.hear(WorkerLost("w1", "fell apart", for_good=True))
    stage.pool.close()


def test_one_ready_worker_forms_no_group(tmp_path: Path) -> None:
    stage = Stage(tmp_path, wait_for_workers=False)
    (vacant, _) = stage.pool.adopt({"w0": ready("w0", "a")})
    assert vacant == WorkerLost("g0", "has no members: w0 stays idle", for_good=True)
    assert stage.pool.release().keys() == {"w0"}
