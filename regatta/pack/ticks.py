"""Tracks side by side: in each tick every member advances by about the same number of samples.

There are three ways to run the same steps with the same bits: each member's graph on its own stream, all graphs as
branches of a joint graph, or one member after another. The fastest is found by timing steps that count.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from regatta.pack.cuda_graphs.capture import Branch, CudaGraphs, Replay
from regatta.pack.rates import PackTiming, Rates
from regatta.pack.track import Lane, Track

MEASURED_TICKS = 4  # ticks that are timed for each way
MIN_TICKS_TO_MEASURE = 5 * MEASURED_TICKS  # with fewer ticks, nothing is measured
MIN_TICKS_TO_JOIN = 48  # with fewer ticks, building a joint graph does not pay

Failed = Callable[[Track, Exception], None]


def steps_per_tick(tracks: Sequence[Track]) -> list[int]:
    """A member with small batches takes several steps while one with large batches takes one."""
    largest = max(track.batch_size for track in tracks)
    return [max(1, largest // track.batch_size) for track in tracks]


class JointGraphCache:
    """Joint graphs by their branches: building one takes longer than many ticks, so it is kept for later calls."""

    MAX_KEPT = 4

    def __init__(self) -> None:
        self._made: dict[tuple[tuple[int, int], ...], Replay | None] = {}

    def get(self, branches: Sequence[Branch], graphs: CudaGraphs, worthwhile: bool) -> Replay | None:
        """The graph of some branches; a new one is built only if `worthwhile`."""
        key = tuple((id(step), count) for branch in branches for step, count in branch)
        if key not in self._made:
            if not worthwhile:
                return None
            while len(self._made) >= self.MAX_KEPT:
                del self._made[next(iter(self._made))]
            self._made[key] = graphs.join_steps(branches)
        return self._made[key]

    def forget(self, track: Track) -> None:
        """Drop the graphs that contain steps of this track."""
        gone = {id(replay) for replay in track.replays()}
        self._made = {key: joint for key, joint in self._made.items() if not any(step in gone for step, _ in key)}


def run_tracks(
    tracks: Sequence[Track], graphs: CudaGraphs, rates: Rates, joints: JointGraphCache, failed: Failed
) -> PackTiming | None:
    """Take all steps of all tracks, in the fastest way that was measured."""
    if not tracks:
        return None
    ticker = Ticker(tracks, graphs, joints, failed)
    key = _timing_key(tracks)
    measured = rates.get(key)
    if measured is None and len(tracks) > 1 and ticker.whole_ticks() >= MIN_TICKS_TO_MEASURE:
        measured = rates.put(key, _measure(ticker))
    if measured is None or measured.pays:
        ticker.together(joint=measured is not None and measured.joint)
    else:
        ticker.in_turn()
    for track in tracks:
        track.finish()
    graphs.join([track.stream for track in tracks])
    if measured is not None:
        _record_timing(tracks, ticker.steps, measured)
    return measured


def _timing_key(tracks: Sequence[Track]) -> Hashable:
    """A measurement applies to these architectures, and to this number of members within a factor of two."""
    members = [member for track in tracks for member in track.members]
    return frozenset(hash(member.architecture) for member in members), len(members).bit_length()


def _measure(ticker: Ticker) -> PackTiming:
    """Time some ticks of each way. They count like all other steps, because no way changes a bit."""
    ticker.together(2)
    beside = ticker.seconds(lambda: ticker.together(MEASURED_TICKS))
    ticker.together(1, joint=True)
    joint = ticker.seconds(lambda: ticker.together(MEASURED_TICKS, joint=True))
    in_turn = ticker.seconds(lambda: ticker.in_turn(MEASURED_TICKS))
    return PackTiming(
        min(beside, joint), in_turn, joint < 0.97 * beside, members=len(ticker.tracks), steps=sum(ticker.steps)
    )


@dataclass
class Ticker:
    """Takes ticks of some tracks. An error in a member's own code ends only that member's track."""

    tracks: Sequence[Track]
    graphs: CudaGraphs
    joints: JointGraphCache
    failed: Failed

    def __post_init__(self) -> None:
        self.steps = steps_per_tick(self.tracks)

    def whole_ticks(self) -> int:
        return min(track.left // count for track, count in zip(self.tracks, self.steps, strict=True))

    def seconds(self, work: Callable[[], None]) -> float:
        self.graphs.synchronize()
        start = time.perf_counter()
        work()
        self.graphs.synchronize()
        return (time.perf_counter() - start) / MEASURED_TICKS

    def together(self, ticks: int | None = None, joint: bool = False) -> None:
        """Take a number of ticks, or all, concurrently."""
        self.graphs.fork([track.stream for track in self.tracks])
        while (active := self._active()) and ticks != 0:
            rounds = min(_rounds(track, count) for track, count in active)
            rounds = rounds if ticks is None else min(rounds, ticks)
            if rounds:
                self._rounds(active, rounds, joint, once=ticks is not None)
            else:  # a lane must be filled, or a batch is short
                for track, count in active:
                    self._advance(track, count)
                rounds = 1
            ticks = None if ticks is None else ticks - rounds
        self.graphs.join([track.stream for track in self.tracks])

    def in_turn(self, ticks: int | None = None) -> None:
        """Take the same ticks one track after another."""
        for track, count in zip(self.tracks, self.steps, strict=True):
            self.graphs.fork([track.stream])
            self._advance(track, track.left if ticks is None else ticks * count)
            self.graphs.join([track.stream])

    def _active(self) -> list[tuple[Track, int]]:
        return [(track, count) for track, count in zip(self.tracks, self.steps, strict=True) if track.left]

    def _rounds(self, active: Sequence[tuple[Track, int]], rounds: int, joint: bool, once: bool) -> None:
        """Run rounds in which every step is a replay: nothing to fill or capture, and nothing that can raise."""
        lanes = [(track, track.ready(), count) for track, count in active]
        joined = self._joint_graph(lanes, rounds, once) if joint else None
        if joined is None:
            self.graphs.replay_many([(track.stream, _replay(lane), count) for track, lane, count in lanes], rounds)
        else:
            self._launch(joined, lanes, rounds)
        for _, lane, count in lanes:
            lane.done += rounds * count
            lane.replayed += rounds * count

    def _launch(self, joined: Replay, lanes: Sequence[tuple[Track, Lane, int]], rounds: int) -> None:
        streams = [track.stream for track, _, _ in lanes]
        random_streams = self._random_streams(lanes)
        separate = [entry for entry in lanes if self.graphs.stream_id(entry[0].stream) in random_streams]
        self.graphs.join(streams)
        self.graphs.fork([track.stream for track, _, _ in separate])
        for _ in range(rounds):
            joined.replay()
        self.graphs.replay_many([(track.stream, _replay(lane), count) for track, lane, count in separate], rounds)
        self.graphs.join(streams)
        self.graphs.fork(streams)

    def _random_streams(self, lanes: Sequence[tuple[Track, Lane, int]]) -> set[Hashable]:
        """Streams of members that draw random numbers. A joint graph cannot advance their generators."""
        return {self.graphs.stream_id(track.stream) for track, _, _ in lanes if track.draws}

    def _joint_graph(self, lanes: Sequence[tuple[Track, Lane, int]], rounds: int, once: bool) -> Replay | None:
        """The joint graph of these lanes.

        Steps that were captured on one stream share its cuBLAS workspace, so they follow one another.
        """
        branches: dict[Hashable, Branch] = {}
        random_streams = self._random_streams(lanes)
        for track, lane, count in lanes:
            name = self.graphs.stream_id(track.stream)
            if name not in random_streams:
                branches.setdefault(name, []).append((_replay(lane), count))
        worthwhile = len(branches) > 1 and (once or rounds >= MIN_TICKS_TO_JOIN)
        return self.joints.get(list(branches.values()), self.graphs, worthwhile)

    def _advance(self, track: Track, count: int) -> None:
        try:
            with self.graphs.on_stream(track.stream):
                track.advance(count)
        except Exception as error:  # noqa: BLE001 (a member's own code may raise anything; only that member stops)
            self.graphs.join([track.stream])  # its earlier steps may still be running
            self.failed(track, error)


def _rounds(track: Track, count: int) -> int:
    """How often a track can replay `count` steps before its lane must be filled."""
    lane = track.current
    return 0 if lane is None or lane.replay is None else (lane.filled - lane.done) // count


def _replay(lane: Lane) -> Replay:
    assert lane.replay is not None
    return lane.replay


def run_stack(track: Track, rates: Rates) -> PackTiming | None:
    """Take all steps of a stack. If it is measured for the first time and does not pay, stop after the measurement."""
    graphs = track.graphs
    key = "stack", len(track.members), hash(track.members[0].kind)
    measured = rates.get(key)
    if graphs is not None:
        graphs.fork([track.stream])
    try:
        with graphs.on_stream(track.stream) if graphs is not None else contextlib.nullcontext():
            if measured is None and track.left >= MIN_TICKS_TO_MEASURE:
                measured = rates.put(key, _measure_stack(track))
            if measured is None or measured.pays:
                track.advance(track.left)
                track.finish()
    finally:
        if graphs is not None:
            graphs.join([track.stream])
    if measured is not None:
        _record_timing([track], [1], measured)
    return measured


def _measure_stack(track: Track) -> PackTiming:
    track.advance(3)  # the first one may capture
    if track.graphs is None:
        seconds = min(_seconds(track, 1) for _ in range(MEASURED_TICKS))  # other programs may delay some
    else:  # launches of several steps overlap, so they are timed as one
        track.graphs.synchronize()
        seconds = _seconds(track, MEASURED_TICKS) / MEASURED_TICKS
    return PackTiming(seconds, sum(member.figures.alone_seconds for member in track.members))


def _seconds(track: Track, ticks: int) -> float:
    start = time.perf_counter()
    track.advance(ticks)
    if track.graphs is not None:
        track.graphs.synchronize()
    return time.perf_counter() - start


def _record_timing(tracks: Sequence[Track], steps: Sequence[int], measured: PackTiming) -> None:
    """Record each member's share of the time, and its rate."""
    seconds = min(measured.together, measured.in_turn)
    taken = sum(count * len(track.members) for track, count in zip(tracks, steps, strict=True))
    for track, count in zip(tracks, steps, strict=True):
        for member in track.members:
            rate = count * member.batch_size / seconds
            member.figures = replace(member.figures, packed_seconds=seconds / taken, samples_per_second=rate)
