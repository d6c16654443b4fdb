"""Tracks side by side: in each tick every member goes on by about the same number of samples."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from regatta.pack.fingerprint import shape_of_work
from regatta.pack.graphs import Graphs
from regatta.pack.rates import Measured, Rates
from regatta.pack.track import Track

MEASURED = 4  # ticks that are timed of either way
WORTHWHILE = 4 * MEASURED  # ticks below which nothing is measured


def steps_per_tick(tracks: Sequence[Track]) -> list[int]:
    """A member with small batches takes several steps while one with large batches takes one."""
    largest = max(track.batch_size for track in tracks)
    return [max(1, largest // track.batch_size) for track in tracks]


def run(tracks: Sequence[Track], graphs: Graphs, rates: Rates, failed: Callable[[Track, Exception], None]) -> Measured | None:
    """Take all steps of all tracks, side by side or in turn, as measured on the way."""
    if not tracks:
        return None
    steps = steps_per_tick(tracks)
    key = tuple(sorted((hash(shape_of_work(m)) for t in tracks for m in t.members)))
    measured = rates.get(key)
    if measured is None and len(tracks) > 1 and _enough(tracks, steps):
        measured = rates.put(key, _measure(tracks, steps, graphs, failed))
    if measured is None or measured.pays:
        _side_by_side(tracks, steps, graphs, failed, None)
    else:
        _in_turn(tracks, steps, graphs, failed, None)
    for track in tracks:
        track.finish()
    graphs.join([track.stream for track in tracks])
    if measured is not None:
        _note(tracks, steps, measured)
    return measured


def run_stack(track: Track, rates: Rates) -> Measured | None:
    """Take all steps of a stack; when it is measured for the first time and does not pay, stop after the measurement."""
    graphs = track.graphs
    key = "stack", len(track.members), hash(shape_of_work(track.members[0]))
    measured = rates.get(key)
    if graphs is not None:
        graphs.fork([track.stream])
    with graphs.on(track.stream) if graphs is not None else contextlib.nullcontext():
        if measured is None and track.left >= WORTHWHILE:
            measured = rates.put(key, _measure_stack(track))
        if measured is None or measured.pays:
            track.advance(track.left)
            track.finish()
    if graphs is not None:
        graphs.join([track.stream])
    if measured is not None:
        _note([track], [1], measured)
    return measured


def _measure_stack(track: Track) -> Measured:
    track.advance(3)  # the first one may capture
    wait = track.graphs.synchronize if track.graphs is not None else (lambda: None)
    wait()
    start = time.perf_counter()
    track.advance(MEASURED)
    wait()
    seconds = (time.perf_counter() - start) / MEASURED
    return Measured(seconds, sum(member.figures.alone_seconds for member in track.members))


def _enough(tracks: Sequence[Track], steps: Sequence[int]) -> bool:
    return all(track.left >= WORTHWHILE * count for track, count in zip(tracks, steps, strict=True))


def _measure(
    tracks: Sequence[Track], steps: Sequence[int], graphs: Graphs, failed: Callable[[Track, Exception], None]
) -> Measured:
    """Time some ticks of either way; they are steps like all others, for neither way changes a bit."""
    _side_by_side(tracks, steps, graphs, failed, 2)
    found = []
    for way in (_side_by_side, _in_turn):
        graphs.synchronize()
        start = time.perf_counter()
        way(tracks, steps, graphs, failed, MEASURED)
        graphs.synchronize()
        found.append((time.perf_counter() - start) / MEASURED)
    return Measured(*found)


def _side_by_side(
    tracks: Sequence[Track],
    steps: Sequence[int],
    graphs: Graphs,
    failed: Callable[[Track, Exception], None],
    ticks: int | None,
) -> None:
    graphs.fork([track.stream for track in tracks])
    active = list(zip(tracks, steps, strict=True))
    while active and ticks != 0:
        for track, count in active:
            _advance(track, count, graphs, failed)
        active = [(track, count) for track, count in active if track.left]
        ticks = None if ticks is None else ticks - 1
    graphs.join([track.stream for track in tracks])


def _in_turn(
    tracks: Sequence[Track],
    steps: Sequence[int],
    graphs: Graphs,
    failed: Callable[[Track, Exception], None],
    ticks: int | None,
) -> None:
    for track, count in zip(tracks, steps, strict=True):
        graphs.fork([track.stream])
        _advance(track, track.left if ticks is None else ticks * count, graphs, failed)
        graphs.join([track.stream])


def _advance(track: Track, count: int, graphs: Graphs, failed: Callable[[Track, Exception], None]) -> None:
    try:
        with graphs.on(track.stream):
            track.advance(count)
    except Exception as error:  # noqa: BLE001 (a member's own code may raise anything, and only it shall stop)
        failed(track, error)


def _note(tracks: Sequence[Track], steps: Sequence[int], measured: Measured) -> None:
    """Each member's share of the time and the rate that it came to."""
    seconds = min(measured.together, measured.in_turn)
    taken = sum(count * len(track.members) for track, count in zip(tracks, steps, strict=True))
    for track, count in zip(tracks, steps, strict=True):
        for member in track.members:
            rate = count * member.batch_size / seconds
            member.figures = replace(member.figures, packed_seconds=seconds / taken, samples_per_second=rate)
