"""The graph tier: each member's step is captured, proven, and replayed beside those of the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regatta.pack import memory, ticks
from regatta.pack.cuda_graphs.capture import Graphs
from regatta.pack.cuda_graphs.proof import PROOF, CannotCapture, graph_track
from regatta.pack.device_data import Resident
from regatta.pack.loop_tier import own_fault, stop
from regatta.pack.member import Indices, Member, Work
from regatta.pack.rates import Measured, Rates
from regatta.pack.track import Track

WORTH_CAPTURE = 8  # steps below which a graph does not pay for itself


@dataclass
class Captured:
    """The captured members of a pack; `limit` is the memory that they may take, in bytes."""

    resident: Resident
    rates: Rates
    graphs: Graphs | None
    limit: int | None

    def __post_init__(self) -> None:
        self.tracks: dict[Member, Track] = {}
        self._joints = ticks.Joints()

    def run(self, work: Work) -> None:
        """Members under graphs, in waves that fit into memory; a wave that does not fit after all is halved."""
        if self.graphs is None:
            return
        wanted = [m for m, batches in work.items() if self._worth_it(m, batches)]
        room = memory.room(self.resident.device, self.limit)
        waves = deque(memory.waves(wanted, lambda m: m.figures.peak_bytes, room))
        several = len(waves) > 1
        while waves:
            wave = waves.popleft()
            if several:
                self.release(but=wave)
            if self._captured(wave, work, self.graphs):
                self._run_wave(wave, work, self.graphs)
                continue
            several = True
            if len(wave) > 1:
                half = (len(wave) + 1) // 2
                waves.extendleft((wave[half:], wave[:half]))
            else:
                waves.appendleft(wave)
            self.release()  # here the error and what its traceback holds are gone

    def let_go(self, member: Member) -> None:
        track = self.tracks.pop(member, None)
        if track is not None:
            self._joints.forget(track)
            track.close()

    def keep(self, members: Sequence[Member]) -> None:
        """Give up all other graphs; their members may be captured again."""
        for member in [m for m in self.tracks if m not in members]:
            self.let_go(member)
            member.tier = "alone" if member.tier == "graph" else member.tier

    def keep_present(self) -> None:
        """Give up graphs that read from where the data no longer is."""
        self.keep([m for m, track in self.tracks.items() if track.generation == self.resident.generation])

    def release(self, but: Sequence[Member] = ()) -> bool:
        """Make room: give up graphs, and the memory that they held; whether there were any."""
        had = any(member not in but for member in self.tracks)
        self.keep(but)
        if self.resident.device.type == "cuda":
            torch.cuda.synchronize(self.resident.device)
            torch.cuda.empty_cache()
        return had

    def _worth_it(self, member: Member, batches: Sequence[Indices]) -> bool:
        if member in self.tracks:
            return bool(batches) and member.error is None
        ahead = [len(batches[k]) for k in range(min(len(batches), PROOF + 1))]
        whole = len(ahead) > PROOF and set(ahead) == {member.batch_size}
        return member.error is None and member.tier == "alone" and whole and len(batches) >= WORTH_CAPTURE

    def _captured(self, wave: Sequence[Member], work: Work, graphs: Graphs) -> bool:
        """Whether all members of a wave are captured, or cannot be; not when memory runs out."""
        for member in wave:
            if member in self.tracks or member.error is not None:
                continue
            with own_fault(member):
                self._capture(member, work[member], graphs)
            failure: BaseException | None = vars(member)["error"]  # which the scope above may have set
            crowded = len(wave) > 1 or bool(self.tracks)
            if isinstance(failure, torch.OutOfMemoryError) and crowded:
                member.error, member.tier = None, "alone"
                return False
        return True

    def _capture(self, member: Member, batches: deque[Indices], graphs: Graphs) -> None:
        taken = member.taken
        try:
            self.tracks[member] = graph_track(member, self.resident, graphs, [batches[k] for k in range(1 + PROOF)])
            member.tier, member.reason = "graph", "exact: a captured step equals the step alone"
        except CannotCapture as error:
            member.tier, member.reason = "held back", str(error)
        finally:
            for _ in range(member.taken - taken):
                batches.popleft()

    def _run_wave(self, wave: Sequence[Member], work: Work, graphs: Graphs) -> None:
        tracks = [self.tracks[m] for m in wave if m in self.tracks]
        for track in tracks:
            batches = work[track.members[0]]
            track.work.extend([rows] for rows in batches)
            batches.clear()
        measured = ticks.run(tracks, graphs, self.rates, self._joints, self._failed)
        if measured is not None:
            _explain(tracks, measured)

    def _failed(self, track: Track, error: Exception) -> None:
        track.drop()
        for member in track.members:
            stop(member, error)
            self.let_go(member)


def _explain(tracks: Sequence[Track], measured: Measured) -> None:
    found = f"{len(tracks)} side by side: {measured.ratio:.1f}x of one after another under graphs"
    text = found if measured.pays else f"do not pack: {found}"
    for track in tracks:
        member = track.members[0]
        if member.error is None:
            member.reason = f"exact: a captured step equals the step alone; {text}"
