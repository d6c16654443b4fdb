"""The graph tier: each member's step is captured, proven exact, and replayed concurrently with the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regatta.pack import memory, ticks
from regatta.pack.cuda_graphs.capture import CudaGraphs
from regatta.pack.cuda_graphs.proof import PROOF_STEPS, CannotCapture, graph_track
from regatta.pack.device_data import DeviceData
from regatta.pack.loop_tier import mark_failed, stop_on_error
from regatta.pack.member import Indices, Member, Work
from regatta.pack.rates import PackTiming, Rates
from regatta.pack.track import Track

MIN_STEPS_TO_CAPTURE = 8  # with fewer steps, a graph does not pay


@dataclass
class GraphTier:
    """The captured members of a pack; `limit` is the memory in bytes that they may use."""

    device_data: DeviceData
    rates: Rates
    graphs: CudaGraphs | None
    limit: int | None

    def __post_init__(self) -> None:
        self.tracks: dict[Member, Track] = {}
        self._joints = ticks.JointGraphCache()

    def run(self, work: Work) -> None:
        """Train members by graphs, in waves that fit into memory. A wave that does not fit after all is halved."""
        if self.graphs is None:
            return
        wanted = [m for m, batches in work.items() if self._worth_it(m, batches)]
        room = memory.available_bytes(self.device_data.device, self.limit)
        waves = deque(memory.split_into_waves(wanted, room))
        several = len(waves) > 1
        while waves:
            wave = waves.popleft()
            if several:
                self.make_room(but=wave)
            if self._capture_wave(wave, work, self.graphs):
                self._run_wave(wave, work, self.graphs)
                continue
            several = True
            if len(wave) > 1:
                half = (len(wave) + 1) // 2
                waves.extendleft((wave[half:], wave[:half]))
            else:
                waves.appendleft(wave)
            self.make_room()  # only here, when the error's traceback no longer holds memory

    def remove_member(self, member: Member) -> None:
        track = self.tracks.pop(member, None)
        if track is not None:
            self._joints.forget(track)
            track.close()

    def keep(self, members: Sequence[Member]) -> None:
        """Drop all other graphs; their members may be captured again."""
        for member in [m for m in self.tracks if m not in members]:
            self.remove_member(member)
            member.tier = "alone" if member.tier == "graph" else member.tier

    def drop_outdated(self) -> None:
        """Drop graphs that read the data from an outdated address."""
        self.keep([m for m, track in self.tracks.items() if track.generation == self.device_data.generation])

    def make_room(self, but: Sequence[Member] = ()) -> bool:
        """Drop graphs and free their memory; returns whether there were any."""
        had = any(member not in but for member in self.tracks)
        self.keep(but)
        if self.device_data.device.type == "cuda":
            torch.cuda.synchronize(self.device_data.device)
            torch.cuda.empty_cache()
        return had

    def _worth_it(self, member: Member, batches: Sequence[Indices]) -> bool:
        if member in self.tracks:
            return bool(batches) and member.error is None
        ahead = [len(batches[k]) for k in range(min(len(batches), PROOF_STEPS + 1))]
        whole = len(ahead) > PROOF_STEPS and set(ahead) == {member.batch_size}
        return member.error is None and member.tier == "alone" and whole and len(batches) >= MIN_STEPS_TO_CAPTURE

    def _capture_wave(self, wave: Sequence[Member], work: Work, graphs: CudaGraphs) -> bool:
        """Capture the members of a wave; returns False when memory runs out."""
        for member in wave:
            if member in self.tracks or member.error is not None:
                continue
            with stop_on_error(member):
                self._capture(member, work[member], graphs)
            failure: BaseException | None = vars(member)["error"]  # `stop_on_error` may have set it
            crowded = len(wave) > 1 or bool(self.tracks)
            if isinstance(failure, torch.OutOfMemoryError) and crowded:
                member.error, member.tier = None, "alone"
                return False
        return True

    def _capture(self, member: Member, batches: deque[Indices], graphs: CudaGraphs) -> None:
        taken = member.taken
        try:
            self.tracks[member] = graph_track(
                member, self.device_data, graphs, [batches[k] for k in range(1 + PROOF_STEPS)]
            )
            member.tier, member.reason = "graph", "exact: a captured step equals the step alone"
        except CannotCapture as error:
            member.tier, member.reason = "held back", str(error)
        finally:
            for _ in range(member.taken - taken):
                batches.popleft()

    def _run_wave(self, wave: Sequence[Member], work: Work, graphs: CudaGraphs) -> None:
        tracks = [self.tracks[m] for m in wave if m in self.tracks]
        for track in tracks:
            batches = work[track.members[0]]
            track.work.extend([rows] for rows in batches)
            batches.clear()
        measured = ticks.run_tracks(tracks, graphs, self.rates, self._joints, self._failed)
        if measured is not None:
            _explain(tracks, measured)

    def _failed(self, track: Track, error: Exception) -> None:
        track.drop()
        for member in track.members:
            mark_failed(member, error)
            self.remove_member(member)


def _explain(tracks: Sequence[Track], measured: PackTiming) -> None:
    found = f"{len(tracks)} side by side: {measured.ratio:.1f}x of one after another under graphs"
    text = found if measured.pays else f"do not pack: {found}"
    for track in tracks:
        member = track.members[0]
        if member.error is None:
            member.reason = f"exact: a captured step equals the step alone; {text}"
