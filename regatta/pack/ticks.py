"""Tracks side by side: in each tick every member goes on by about the same number of samples.

Three ways lead through the same steps to the same bits: each member's graph on its own stream, all graphs as branches
of a joint one, or one member after another. Which is fastest is measured on steps that count.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from regatta.pack.cuda_graphs.capture import Graphs, Replay
from regatta.pack.rates import Measured, Rates
from regatta.pack.track import Lane, Track

MEASURED = 4  # ticks that are timed of each way
WORTHWHILE = 5 * MEASURED  # ticks below which nothing is measured
WORTH_JOINING = 48  # ticks below which a joint graph does not pay for being made

Failed = Callable[[Track, Exception], None]


def steps_per_tick(tracks: Sequence[Track]) -> list[int]:
    """A member with small batches takes several steps while one with large batches takes one."""
    largest = max(track.batch_size for track in tracks)
    return [max(1, largest // track.batch_size) for track in tracks]


class Joints:
    """Joint graphs that were made: making one takes longer than many ticks, so it is kept for the next call."""

    MOST = 4

    def __init__(self) -> None:
        self._made: dict[tuple[tuple[int, int], ...], Replay | None] = {}

    def get(self, branches: Sequence[Sequence[tuple[Replay, int]]], graphs: Graphs, worthwhile: bool) -> Replay | None:
        """The graph of some branches; it is made only where that is worthwhile."""
        key = tuple((id(step), count) for branch in branches for step, count in branch)
        if key not in self._made:
            if not worthwhile:
                return None
            while len(self._made) >= self.MOST:
                del self._made[next(iter(self._made))]
            self._made[key] = graphs.joint(branches)
        return self._made[key]

    def forget(self, track: Track) -> None:
        """The steps of a track are given up, and with them the graphs that hold them."""
        gone = {id(replay) for replay in track.replays()}
        self._made = {key: joint for key, joint in self._made.items() if not any(step in gone for step, _ in key)}


def run(tracks: Sequence[Track], graphs: Graphs, rates: Rates, joints: Joints, failed: Failed) -> Measured | None:
    """Take all steps of all tracks, in the way that is fastest as far as it has been measured."""
    if not tracks:
        return None
    ticker = Ticker(tracks, graphs, joints, failed)
    key = _composition(tracks)
    measured = rates.get(key)
    if measured is None and len(tracks) > 1 and ticker.whole_ticks() >= WORTHWHILE:
        measured = rates.put(key, _measure(ticker))
    if measured is None or measured.pays:
        ticker.together(joint=measured is not None and measured.joint)
    else:
        ticker.in_turn()
    for track in tracks:
        track.finish()
    graphs.join([track.stream for track in tracks])
    if measured is not None:
        _note(tracks, ticker.steps, measured)
    return measured


def _composition(tracks: Sequence[Track]) -> Hashable:
    """What a measurement holds for: the architectures, and the number of members to within a factor of two."""
    members = [member for track in tracks for member in track.members]
    return frozenset(hash(member.architecture) for member in members), len(members).bit_length()


def _measure(ticker: Ticker) -> Measured:
    """Time some ticks of each way; they are steps like all others, for no way changes a bit."""
    ticker.together(2)
    beside = ticker.seconds(lambda: ticker.together(MEASURED))
    ticker.together(1, joint=True)
    joint = ticker.seconds(lambda: ticker.together(MEASURED, joint=True))
    in_turn = ticker.seconds(lambda: ticker.in_turn(MEASURED))
    return Measured(
        min(beside, joint), in_turn, joint < 0.97 * beside, members=len(ticker.tracks), steps=sum(ticker.steps)
    )


@dataclass
class Ticker:
    """Takes ticks of some tracks; what a member's own code raises ends that member's track alone."""

    tracks: Sequence[Track]
    graphs: Graphs
    joints: Joints
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
        return (time.perf_counter() - start) / MEASURED

    def together(self, ticks: int | None = None, joint: bool = False) -> None:
        """So many ticks, or all."""
        self.graphs.fork([track.stream for track in self.tracks])
        while (active := self._active()) and ticks != 0:
            rounds = min(_rounds(track, count) for track, count in active)
            rounds = rounds if ticks is None else min(rounds, ticks)
            if rounds:
                self._rounds(active, rounds, joint, once=ticks is not None)
            else:  # a lane is to be filled, or a batch is short
                for track, count in active:
                    self._advance(track, count)
                rounds = 1
            ticks = None if ticks is None else ticks - rounds
        self.graphs.join([track.stream for track in self.tracks])

    def in_turn(self, ticks: int | None = None) -> None:
        """The same, one track after another."""
        for track, count in zip(self.tracks, self.steps, strict=True):
            self.graphs.fork([track.stream])
            self._advance(track, track.left if ticks is None else ticks * count)
            self.graphs.join([track.stream])

    def _active(self) -> list[tuple[Track, int]]:
        return [(track, count) for track, count in zip(self.tracks, self.steps, strict=True) if track.left]

    def _rounds(self, active: Sequence[tuple[Track, int]], rounds: int, joint: bool, once: bool) -> None:
        """Rounds in which every step is a replay: nothing to fill, nothing to capture, nothing that can raise."""
        lanes = [(track, track.ready(), count) for track, count in active]
        joined = self._joined(lanes, rounds, once) if joint else None
        if joined is None:
            self.graphs.burst([(track.stream, _replay(lane), count) for track, lane, count in lanes], rounds)
        else:
            self._launch(joined, lanes, rounds)
        for _, lane, count in lanes:
            lane.done += rounds * count
            lane.replayed += rounds * count

    def _launch(self, joined: Replay, lanes: Sequence[tuple[Track, Lane, int]], rounds: int) -> None:
        streams = [track.stream for track, _, _ in lanes]
        apart = self._apart(lanes)
        beside = [(t.stream, _replay(lane), count) for t, lane, count in lanes if self.graphs.name(t.stream) in apart]
        self.graphs.join(streams)
        self.graphs.fork([track.stream for track, _, _ in lanes if self.graphs.name(track.stream) in apart])
        for _ in range(rounds):
            joined.replay()
        self.graphs.burst(beside, rounds)
        self.graphs.join(streams)
        self.graphs.fork(streams)

    def _apart(self, lanes: Sequence[tuple[Track, Lane, int]]) -> set[Hashable]:
        """Streams of members that draw random numbers: they stay out of a joint graph, to be told where to go on."""
        return {self.graphs.name(track.stream) for track, _, _ in lanes if track.draws}

    def _joined(self, lanes: Sequence[tuple[Track, Lane, int]], rounds: int, once: bool) -> Replay | None:
        """The joint graph of these lanes.

        Steps that were captured on one stream share its work space (cuBLAS has one for each): they follow one another.
        """
        branches: dict[Hashable, list[tuple[Replay, int]]] = {}
        apart = self._apart(lanes)
        for track, lane, count in lanes:
            name = self.graphs.name(track.stream)
            if name not in apart:
                branches.setdefault(name, []).append((_replay(lane), count))
        worthwhile = len(branches) > 1 and (once or rounds >= WORTH_JOINING)
        return self.joints.get(list(branches.values()), self.graphs, worthwhile)

    def _advance(self, track: Track, count: int) -> None:
        try:
            with self.graphs.on(track.stream):
                track.advance(count)
        except Exception as error:  # noqa: BLE001 (a member's own code may raise anything, and only it shall stop)
            self.failed(track, error)


def _rounds(track: Track, count: int) -> int:
    """How often a track can replay so many steps without anything else to do."""
    lane = track.current
    return 0 if lane is None or lane.replay is None else (lane.filled - lane.done) // count


def _replay(lane: Lane) -> Replay:
    assert lane.replay is not None
    return lane.replay


def run_stack(track: Track, rates: Rates) -> Measured | None:
    """Take all steps of a stack; when it is measured for the first time and does not pay, stop after that."""
    graphs = track.graphs
    key = "stack", len(track.members), hash(track.members[0].kind)
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


def _note(tracks: Sequence[Track], steps: Sequence[int], measured: Measured) -> None:
    """Each member's share of the time and the rate that it came to."""
    seconds = min(measured.together, measured.in_turn)
    taken = sum(count * len(track.members) for track, count in zip(tracks, steps, strict=True))
    for track, count in zip(tracks, steps, strict=True):
        for member in track.members:
            rate = count * member.batch_size / seconds
            member.figures = replace(member.figures, packed_seconds=seconds / taken, samples_per_second=rate)
