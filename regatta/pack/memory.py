"""How much memory a member needs on the device, and which members fit together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from regatta.pack.state.member_state import changing_tensors

if TYPE_CHECKING:
    from regatta.pack.member import Member

MEMORY_SLACK = 1.15  # factor: a captured step keeps its memory in whole segments


@contextmanager
def measure_memory(member: Member, device: torch.device) -> Iterator[None]:
    """Measure the memory of the step inside: the state of the member, and the additional peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    yield
    peak = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else 0
    size = sum(tensor.nbytes for tensor in changing_tensors(member).values())
    member.figures = replace(member.figures, state_bytes=size, peak_bytes=max(peak, member.figures.peak_bytes))


def split_into_waves(members: Sequence[Member], limit: int) -> list[list[Member]]:
    """Split members into groups that fit. A member that exceeds the limit gets its own group."""
    found: list[list[Member]] = []
    room = 0
    for member in members:
        size = int(member.figures.peak_bytes * MEMORY_SLACK)
        if not found or size > room:
            found.append([])
            room = limit
        found[-1].append(member)
        room -= size
    return found


def available_bytes(device: torch.device, limit: int | None) -> int:
    """The bytes that steps may use: the free memory, or the rest of the limit."""
    if device.type != "cuda":
        return limit if limit is not None else 1 << 62
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    available = int(0.95 * (free + unused))
    return available if limit is None else min(available, limit - torch.cuda.memory_allocated(device))
