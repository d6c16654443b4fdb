"""The graph tier: each member's step is captured, proven exact, and replayed concurrently with the others."""

from __future__ import annotations

import contextlib
import random
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from regatta.pack import memory, ticks
from regatta.pack.checks import check_steps, members_to_check, steps_to_compare
from regatta.pack.cuda_graphs.capture import CudaGraphs
from regatta.pack.cuda_graphs.proof import PROOF_STEPS, CannotCapture, StepComparison, check_again, graph_track
from regatta.pack.device_data import DeviceData
from regatta.pack.loop_tier import mark_failed, stop_on_error
from regatta.pack.member import Indices, Member, Work
from regatta.pack.rates import PackTiming, Rates
from regatta.pack.state.hyperparameters import HyperparameterChanged
from regatta.pack.state.member_state import SavedMember
from regatta.pack.track import Track

MIN_STEPS_TO_CAPTURE = 8  # with fewer steps, a graph does not pay


@dataclass
class GraphTier:
    """The captured members of a pack; `limit` is the memory in bytes that they may use."""

    device_data: DeviceData
    rates: Rates
    graphs: CudaGraphs | None
    limit: int | None
    seed: int = 0

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

    def drop_outdated(self, work: Work) -> None:
        """Drop graphs that hold an outdated address or value. Members that do not train now keep theirs."""
        moved = self.device_data.generation
        kept = [m for m, t in self.tracks.items() if t.generation == moved and (m not in work or not t.outdated)]
        self.keep(kept)

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
        if member.notes:  # a later step differed
            return False
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
        """Run the tracks of a wave, and compare some steps of some members with the step alone.

        All members pause where some are compared, so that they go on side by side.
        """
        members = [m for m in wave if m in self.tracks]
        tracks = [self.tracks[m] for m in members]
        if not tracks:
            return
        longest = max(members, key=lambda member: len(work[member]))
        sizes = {m: [len(rows) for rows in work[m]] for m in members}
        draw, steps = random.Random(f"{self.seed} {longest.taken}"), len(work[longest])
        epoch_steps = longest.epoch_steps(self.device_data.rows)
        stops = check_steps(sizes[longest], longest.batch_size, epoch_steps, draw)
        chosen = [members_to_check(len(members), steps, draw) for _ in stops]
        saved = self._save({members[k] for numbers in chosen for k in numbers})
        done = dict.fromkeys(members, 0)
        measured = None
        again = Counter(members[k] for numbers in chosen for k in numbers)  # how often each is still to be compared
        for stop, numbers in zip(stops, chosen, strict=True):
            compared: dict[Member, int] = {}  # how many of the next steps
            for number, member in enumerate(members):
                until = (stop + 1) * len(sizes[member]) // steps
                count = until - done[member]
                if member not in self.tracks or not count:
                    continue
                if number in numbers and member in saved:
                    first = steps_to_compare(sizes[member], member.batch_size, until - 1)[0]
                    compared[member] = until - max(first, done[member])
                batches = [work[member].popleft() for _ in range(count - compared.get(member, 0))]
                self.tracks[member].work.extend([rows] for rows in batches)
                done[member] = until
                if member in saved:
                    saved[member].taken += batches
            active = [self.tracks[m] for m in members if m in self.tracks]
            timing = ticks.run_tracks(active, graphs, self.rates, self._joints, partial(self._failed, work))
            measured = timing or measured
            again.subtract(members[k] for k in numbers)
            found = {m: self._compare_next(m, count, saved[m], work) for m, count in compared.items()}
            for member, comparisons in found.items():  # only now does the host wait for the device
                self._settle(member, comparisons, saved, work, is_last=not again[member])
        if measured is not None:
            _explain(tracks, measured)

    def _save(self, members: Iterable[Member]) -> dict[Member, _Saved]:
        """The states of members that will be compared, as far as they fit into memory."""
        found: dict[Member, _Saved] = {}
        with contextlib.suppress(torch.OutOfMemoryError):
            for member in members:
                found[member] = _Saved(member)
        return found

    def _compare_next(self, member: Member, count: int, saved: _Saved, work: Work) -> list[StepComparison]:
        """Take the next steps of a member both ways."""
        found: list[StepComparison] = []
        for _ in range(count):
            if member not in self.tracks:
                break
            track, rows = self.tracks[member], work[member].popleft()
            saved.taken.append(rows)
            try:
                comparison = check_again(track, rows)
            except torch.OutOfMemoryError:
                self._put_back(member, saved, work, "there is no memory to compare its step")
            except Exception as error:  # noqa: BLE001 (a member's own code may raise anything)
                self._failed(work, track, error)
            else:
                found += [comparison] if comparison is not None else []
        return found

    def _settle(
        self,
        member: Member,
        comparisons: Sequence[StepComparison],
        saved: dict[Member, _Saved],
        work: Work,
        is_last: bool,
    ) -> None:
        """If a step of a member differs, it goes back to where its steps were equal, and is trained alone."""
        before = saved.pop(member)
        if member not in self.tracks:
            return
        different = next((name for each in comparisons if (name := each.first()) is not None), None)
        if different is None:
            saved |= {} if is_last else self._save([member])
            return
        text = f"{different} differs between a captured step and the same step taken alone"
        self._put_back(member, before, work, f"{text}, at a later step")
        member.notes.append(f"{text}: trained alone from step {member.taken} on")

    def _put_back(self, member: Member, saved: _Saved, work: Work, reason: str) -> None:
        self.tracks[member].drop()
        self.remove_member(member)
        saved.state.put_back()
        work[member].extendleft(reversed(saved.taken))
        member.tier, member.reason = "held back", reason

    def _failed(self, work: Work, track: Track, error: Exception) -> None:
        (member,) = track.members
        rest = track.drop()
        self.remove_member(member)
        if isinstance(error, HyperparameterChanged):
            work[member].extendleft(reversed([rows for (rows,) in rest]))
            member.tier, member.reason = "held back", str(error)
        else:
            mark_failed(member, error)


class _Saved:
    """The last state of a member that was compared, and the batches that it has taken since."""

    def __init__(self, member: Member) -> None:
        self.state = SavedMember(member)
        self.taken: list[Indices] = []


def _explain(tracks: Sequence[Track], measured: PackTiming) -> None:
    found = f"{len(tracks)} side by side: {measured.ratio:.1f}x of one after another under graphs"
    text = found if measured.pays else f"do not pack: {found}"
    for track in tracks:
        member = track.members[0]
        if member.tier == "graph":
            member.reason = f"exact: a captured step equals the step alone; {text}"
