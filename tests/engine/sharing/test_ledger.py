"""The books of the blocks, and the blocks themselves: bounds that hold, what is made first, what comes back."""

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
    layout_of,
    leaves_of,
    map_block,
    new_block,
    plain,
)
from regatta.engine.sharing.ledger import (
    DEATHS,
    BlockJob,
    BlockKey,
    Ledger,
)
from regatta.engine.sharing.wire import receive, send
from regatta.errors import UsageError

SIZE = 10


def train(partition: int, epoch: int | None = None) -> BlockKey:
    return BlockKey("train", partition, epoch)


def ledger(memory: int = 100, disk: int = 100, **more: Any) -> Ledger:
    return Ledger(memory, disk, **{"partitions": 3, "epochs": 4, "reads": False, "transforms": True, **more})


def done(books: Ledger, job: BlockJob, size: int = SIZE) -> list[str]:
    """A job as a maker does it: where there is room."""
    if job.spill:
        books.spilled(job.key, True)
        return []
    if size <= job.memory:
        return books.made(job.key, size, "memory")
    return books.made(job.key, size, "disk") if size <= job.disk else books.crowded(job.key, size)


def test_a_block_that_two_want_is_made_once() -> None:
    books = ledger()
    assert not books.want("a", train(0, 1), ["m"]) and not books.want("b", train(0, 1), ["n"])
    (job,) = [job for job in books.jobs(4) if job.key == train(0, 1)]
    assert done(books, job) == ["a", "b"]
    assert books.want("c", train(0, 1), ["o"])


def test_what_is_waited_for_comes_before_what_comes_next() -> None:
    books = ledger()
    for partition in (2, 0):
        books.want("a" if partition else "b", train(partition, 1), [f"m{partition}"])
    first, *others = books.jobs(2)
    done(books, first)
    assert [job.key for job in (first, *others, *books.jobs(2))] == [train(2, 1), train(0, 1), train(1, 1), train(2, 2)]


def test_no_more_is_made_ahead_than_there_are_readers_and_nothing_after_the_last_epoch() -> None:
    books = ledger(epochs=1)
    books.want("a", train(0, 1), ["m"])
    for key in (train(0, 1), train(1, 1)):
        (job,) = books.jobs(9)
        assert job.key == key
        done(books, job)
    assert books.jobs(9) == []  # it was not asked for yet
    books.want("a", train(1, 1), ["m"])
    assert [job.key for job in books.jobs(9)] == [train(2, 1)]


def test_a_transformed_block_waits_for_what_it_is_made_from() -> None:
    books = ledger(reads=True)
    books.want("a", train(0, 1), ["m"])
    (read,) = books.jobs(4)
    assert read.key == train(0)
    done(books, read)
    assert books.jobs(1)[0].key == train(0, 1) and books.base_of(train(0, 1)) == train(0)


def test_who_waits_for_a_block_hears_that_what_it_is_made_from_failed() -> None:
    books = ledger(reads=True)
    books.want("a", train(0, 1), ["m"])
    books.want("b", train(0, 2), ["n"])
    books.jobs(1)
    assert sorted(books.failed(train(0))) == ["a", "b"]


def test_what_every_model_has_had_is_dropped_before_anything_is_spilled() -> None:
    books = ledger(memory=2 * SIZE, partitions=1)
    for epoch in (1, 2, 3):
        books.want("a", train(0, epoch), ["m"])
        for job in books.jobs(1):
            assert not job.spill
            done(books, job)
        books.release("a", train(0, epoch))
        books.closed()
    assert books.used("disk") == 0 and books.used("memory") <= 2 * SIZE


def test_what_others_still_need_is_spilled_and_comes_back() -> None:
    books = ledger(memory=2 * SIZE, partitions=4, epochs=1)
    books.want("b", train(3, 1), ["slow"])
    for partition in (0, 1, 2):
        books.want("a", train(partition, 1), ["m"])
        while jobs := books.jobs(1):
            done(books, jobs[0])
            books.closed()
        books.release("a", train(partition, 1))
    assert books.used("disk") > 0 and books.used("memory") <= 2 * SIZE
    assert books.want("b", train(0, 1), ["slow"])


def test_a_job_is_given_up_when_it_took_too_many_makers() -> None:
    books = ledger()
    books.want("a", train(0, 1), ["m"])
    ends = []
    for _ in range(DEATHS):
        (job,) = books.jobs(1)
        ends.append(books.died(job))
    assert ends == [False] * (DEATHS - 1) + [True]


def test_a_lost_block_is_closed_and_made_again_from_what_is_there() -> None:
    books = ledger(reads=True)
    books.want("a", train(0, 1), ["m"])
    for _ in range(2):
        done(books, books.jobs(1)[0])
    books.lost("a", train(0, 1))
    books.lost("b", train(0, 1))  # who hears of it later
    assert books.closed() == [train(0, 1)] and books.used("memory") == SIZE
    assert not books.want("a", train(0, 1), ["m"])
    assert [job.key for job in books.jobs(1)] == [train(0, 1)]
    books.failed(train(0, 1))
    books.lost("job", train(0))
    assert not books.want("a", train(0, 1), ["m"])
    assert [job.key for job in books.jobs(1)] == [train(0)]


def test_a_reader_that_leaves_tells_what_was_made_for_it_alone() -> None:
    books = ledger(reads=True)
    books.want("a", train(0, 1), ["m"])
    books.want("b", train(1, 1), ["n"])
    books.want("c", train(1, 1), ["n"])
    books.jobs(2)
    assert books.leave("a") == [train(0)]
    assert books.leave("b") == []


EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 2), st.integers(1, 4), st.integers(0, 5)), max_size=60
)


@settings(max_examples=120, deadline=None)
@given(events=EVENTS, memory=st.integers(0, 40), disk=st.integers(0, 40), reads=st.booleans())
def test_whatever_happens_bounds_hold_and_everybody_is_answered(
    events: list[tuple[str, int, int, int]], memory: int, disk: int, reads: bool
) -> None:
    """Readers ask, release, lose, stop and leave in any order; makers do their jobs or die."""
    books = ledger(memory, disk, reads=reads)
    held: dict[str, BlockKey] = {}
    for reader, partition, epoch, luck in events:
        if reader in held:
            (books.lost if luck == 3 else books.release)(reader, held.pop(reader))
        if luck == 5:
            books.leave(reader)
            continue
        key = train(partition, epoch)
        answered = {reader} if books.want(reader, key, [f"m{luck}"]) else set()
        if answered:
            held[reader] = key
        for _ in range(40):
            jobs = books.jobs(2)
            if not jobs:
                break
            for job in jobs:
                if luck == 4 and not job.spill:
                    books.died(job)
                    luck = 0
                    continue
                if reader in done(books, job):
                    answered.add(reader)
                    if max(job.memory, job.disk) >= SIZE:
                        held[reader] = key
            books.closed()
            assert books.used("memory") <= memory and books.used("disk") <= disk
        assert answered == {reader} and not books.waits(reader)


# -- blocks and messages -------------------------------------------------------------------------------------------

DATA = {"x": (np.arange(12, dtype=np.float32).reshape(4, 3), np.array([True, False, True, True])), 7: np.zeros((4, 0))}


@pytest.mark.parametrize("on_disk", [False, True])
def test_arrays_come_back_from_a_block_as_they_were(tmp_path: Path, on_disk: bool) -> None:
    layout = BlockLayout.from_json(layout_of(DATA).as_json())
    file = new_block(layout.bytes, tmp_path if on_disk else None)
    for into, array in zip(leaves_of(map_block(file, layout, writing=True)), leaves_of(DATA), strict=True):
        into[:] = array
    copied = copy_block(file, layout.bytes, tmp_path)
    os.close(file)
    found = map_block(copied, layout)
    os.close(copied)
    assert list(found) == ["x", 7] and isinstance(found["x"], tuple)
    for a, b in zip(leaves_of(found), leaves_of(DATA), strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)
    assert not list(tmp_path.iterdir())


def test_tensors_become_arrays_and_what_cannot_is_named() -> None:
    import torch

    (array,) = plain([torch.ones(2, 3)], "input_fn")
    assert isinstance(array, np.ndarray) and array.shape == (2, 3)
    for wrong in (torch.ones(2, dtype=torch.bfloat16), "text", np.float32(3), np.array(["a", None], dtype=object)):
        with pytest.raises(UsageError, match="input_fn returned"):
            plain((wrong,), "input_fn")


def test_a_message_brings_its_file_along() -> None:
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
