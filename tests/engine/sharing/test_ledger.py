"""The ledger of the blocks, and the blocks themselves: bounds that hold, what is made first, what comes back."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regatta.engine.sharing.blocks import (
    BlockLayout,
    copy_block,
    iterate_arrays,
    layout_of,
    map_block,
    new_block,
    to_arrays,
)
from regatta.engine.sharing.connections import receive, send
from regatta.engine.sharing.ledger import MAX_DEATHS, BlockJob, BlockKey, Ledger
from regatta.errors import UsageError

SIZE = 10


def train(partition: int, epoch: int | None = None) -> BlockKey:
    return BlockKey("train", partition, epoch)


def new_ledger(memory: int = 100, disk: int = 100, **more: Any) -> Ledger:
    return Ledger(memory, disk, **{"partitions": 3, "epochs": 4, "reads": False, "transforms": True, **more})


def done(ledger: Ledger, job: BlockJob, size: int = SIZE) -> list[str]:
    """Do a job as a preprocess worker does: where there is room."""
    if job.spill:
        ledger.spilled(job.key, True)
        return []
    if size <= job.memory:
        return ledger.made(job.key, size, "memory")
    return ledger.made(job.key, size, "disk") if size <= job.disk else ledger.no_room(job.key, size)


def test_a_block_for_two_readers_is_made_once() -> None:
    ledger = new_ledger()
    assert not ledger.request("a", train(0, 1), ["m"]) and not ledger.request("b", train(0, 1), ["n"])
    (job,) = [job for job in ledger.next_jobs(4) if job.key == train(0, 1)]
    assert done(ledger, job) == ["a", "b"]
    assert ledger.request("c", train(0, 1), ["o"])


def test_requested_blocks_are_made_before_those_ahead() -> None:
    ledger = new_ledger()
    for partition in (2, 0):
        ledger.request("a" if partition else "b", train(partition, 1), [f"m{partition}"])
    first, *others = ledger.next_jobs(2)
    done(ledger, first)
    assert [job.key for job in (first, *others, *ledger.next_jobs(2))] == [
        train(2, 1),
        train(0, 1),
        train(1, 1),
        train(2, 2),
    ]


def test_at_most_one_block_per_reader_is_made_ahead_and_none_after_the_last_epoch() -> None:
    ledger = new_ledger(epochs=1)
    ledger.request("a", train(0, 1), ["m"])
    for key in (train(0, 1), train(1, 1)):
        (job,) = ledger.next_jobs(9)
        assert job.key == key
        done(ledger, job)
    assert ledger.next_jobs(9) == []  # it was not asked for yet
    ledger.request("a", train(1, 1), ["m"])
    assert [job.key for job in ledger.next_jobs(9)] == [train(2, 1)]


def test_a_transformed_block_is_made_after_its_base() -> None:
    ledger = new_ledger(reads=True)
    ledger.request("a", train(0, 1), ["m"])
    (read,) = ledger.next_jobs(4)
    assert read.key == train(0)
    done(ledger, read)
    assert ledger.next_jobs(1)[0].key == train(0, 1) and ledger.base_of(train(0, 1)) == train(0)


def test_readers_of_a_block_are_answered_when_its_base_fails() -> None:
    ledger = new_ledger(reads=True)
    ledger.request("a", train(0, 1), ["m"])
    ledger.request("b", train(0, 2), ["n"])
    ledger.next_jobs(1)
    assert sorted(ledger.failed(train(0))) == ["a", "b"]


def test_blocks_used_by_all_models_are_dropped_before_any_is_spilled() -> None:
    ledger = new_ledger(memory=2 * SIZE, partitions=1)
    for epoch in (1, 2, 3):
        ledger.request("a", train(0, epoch), ["m"])
        for job in ledger.next_jobs(1):
            assert not job.spill
            done(ledger, job)
        ledger.release("a", train(0, epoch))
        ledger.take_dropped()
    assert ledger.used_bytes("disk") == 0 and ledger.used_bytes("memory") <= 2 * SIZE


def test_blocks_that_models_still_need_are_spilled_and_read_again() -> None:
    ledger = new_ledger(memory=2 * SIZE, partitions=4, epochs=1)
    ledger.request("b", train(3, 1), ["slow"])
    for partition in (0, 1, 2):
        ledger.request("a", train(partition, 1), ["m"])
        while jobs := ledger.next_jobs(1):
            done(ledger, jobs[0])
            ledger.take_dropped()
        ledger.release("a", train(partition, 1))
    assert ledger.used_bytes("disk") > 0 and ledger.used_bytes("memory") <= 2 * SIZE
    assert ledger.request("b", train(0, 1), ["slow"])


def test_a_job_is_given_up_after_too_many_deaths() -> None:
    ledger = new_ledger()
    ledger.request("a", train(0, 1), ["m"])
    ends = []
    for _ in range(MAX_DEATHS):
        (job,) = ledger.next_jobs(1)
        ends.append(ledger.worker_died(job))
    assert ends == [False] * (MAX_DEATHS - 1) + [True]


def test_a_lost_block_is_closed_and_made_again_from_its_base() -> None:
    ledger = new_ledger(reads=True)
    ledger.request("a", train(0, 1), ["m"])
    for _ in range(2):
        done(ledger, ledger.next_jobs(1)[0])
    ledger.lost("a", train(0, 1))
    ledger.lost("b", train(0, 1))  # it learns of it later
    assert ledger.take_dropped() == [train(0, 1)] and ledger.used_bytes("memory") == SIZE
    assert not ledger.request("a", train(0, 1), ["m"])
    assert [job.key for job in ledger.next_jobs(1)] == [train(0, 1)]
    ledger.failed(train(0, 1))
    ledger.lost("job", train(0))
    assert not ledger.request("a", train(0, 1), ["m"])
    assert [job.key for job in ledger.next_jobs(1)] == [train(0)]


def test_removing_a_reader_returns_the_blocks_made_for_it_alone() -> None:
    ledger = new_ledger(reads=True)
    ledger.request("a", train(0, 1), ["m"])
    ledger.request("b", train(1, 1), ["n"])
    ledger.request("c", train(1, 1), ["n"])
    ledger.next_jobs(2)
    assert ledger.remove_reader("a") == [train(0)]
    assert ledger.remove_reader("b") == []


EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 2), st.integers(1, 4), st.integers(0, 5)), max_size=60
)


@settings(max_examples=120, deadline=None)
@given(events=EVENTS, memory=st.integers(0, 40), disk=st.integers(0, 40), reads=st.booleans())
def test_limits_hold_and_every_reader_is_answered_whatever_happens(
    events: list[tuple[str, int, int, int]], memory: int, disk: int, reads: bool
) -> None:
    """Readers request, release, lose, stop and leave in any order; preprocess workers do their jobs or die."""
    ledger = new_ledger(memory, disk, reads=reads)
    held: dict[str, BlockKey] = {}
    for reader, partition, epoch, luck in events:
        if reader in held:
            (ledger.lost if luck == 3 else ledger.release)(reader, held.pop(reader))
        if luck == 5:
            ledger.remove_reader(reader)
            continue
        key = train(partition, epoch)
        answered = {reader} if ledger.request(reader, key, [f"m{luck}"]) else set()
        if answered:
            held[reader] = key
        for _ in range(40):
            jobs = ledger.next_jobs(2)
            if not jobs:
                break
            for job in jobs:
                if luck == 4 and not job.spill:
                    ledger.worker_died(job)
                    luck = 0
                    continue
                if reader in done(ledger, job):
                    answered.add(reader)
                    if max(job.memory, job.disk) >= SIZE:
                        held[reader] = key
            ledger.take_dropped()
            assert ledger.used_bytes("memory") <= memory and ledger.used_bytes("disk") <= disk
        assert answered == {reader} and not ledger.is_waiting(reader)


# -- blocks and messages -------------------------------------------------------------------------------------------

DATA = {"x": (np.arange(12, dtype=np.float32).reshape(4, 3), np.array([True, False, True, True])), 7: np.zeros((4, 0))}


@pytest.mark.parametrize("on_disk", [False, True])
def test_arrays_are_read_from_a_block_unchanged(tmp_path: Path, on_disk: bool) -> None:
    layout = BlockLayout.from_json(layout_of(DATA).as_json())
    file = new_block(layout.bytes, tmp_path if on_disk else None)
    for into, array in zip(iterate_arrays(map_block(file, layout, writing=True)), iterate_arrays(DATA), strict=True):
        into[:] = array
    copied = copy_block(file, layout.bytes, tmp_path)
    os.close(file)
    found = map_block(copied, layout)
    os.close(copied)
    assert list(found) == ["x", 7] and isinstance(found["x"], tuple)
    for a, b in zip(iterate_arrays(found), iterate_arrays(DATA), strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)
    assert not list(tmp_path.iterdir())


def test_tensors_become_arrays_and_errors_name_what_cannot() -> None:
    import torch

    (array,) = to_arrays([torch.ones(2, 3)], "input_fn")
    assert isinstance(array, np.ndarray) and array.shape == (2, 3)
    for wrong in (torch.ones(2, dtype=torch.bfloat16), "text", np.float32(3), np.array(["a", None], dtype=object)):
        with pytest.raises(UsageError, match="input_fn returned"):
            to_arrays((wrong,), "input_fn")


def test_a_message_carries_an_open_file() -> None:
    one, other = socket.socketpair()
    file = new_block(3)
    os.pwrite(file, b"abc", 0)
    for number in range(3):
        send(one, {"number": number, "long": "x" * 10_000}, file if number == 1 else None)
    os.close(file)
    for number in range(3):
        message, came = receive(other)
        assert message["number"] == number and (came is not None) == (number == 1)
        if came is not None:
            assert os.pread(came, 3, 0) == b"abc"
            os.close(came)
    one.close()
    with pytest.raises(EOFError):
        receive(other)
    other.close()
