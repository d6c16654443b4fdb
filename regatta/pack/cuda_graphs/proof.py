"""A captured step is used only after it was compared, bit for bit, with the same step taken alone.

The steps of the comparison count, so it costs little: the results of the steps taken alone are kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regatta.frameworks.torch.capturable import why_not_capturable
from regatta.pack.cuda_graphs.capture import CudaGraphs
from regatta.pack.device_data import DeviceData, take_rows
from regatta.pack.fingerprint import first_hook
from regatta.pack.member import Indices, Member
from regatta.pack.state.hyperparameters import HyperparameterChanged, HyperparameterPreview
from regatta.pack.state.member_state import BitDifferences, changing_tensors, copy_tensors, write_back
from regatta.pack.state.python_state import PythonState
from regatta.pack.step import take_step
from regatta.pack.track import Track

STEADY_STEPS = 8  # for fewer steps with the same constants, a graph does not pay
PROOF_STEPS = 2  # steps that are taken both ways; a value that was wrongly made constant shows in the second


class CannotCapture(Exception):
    """A member's step cannot be captured; the message says why."""


def graph_track(member: Member, device_data: DeviceData, graphs: CudaGraphs, batches: Sequence[Indices]) -> Track:
    """Capture a member's step and prove it on PROOF_STEPS + 1 steps, which all count. Raises CannotCapture."""
    if member.evaluates_loss:
        raise CannotCapture(f"{type(member.optimizer).__name__} evaluates the loss by itself")
    hook = first_hook(member)
    reason = f"a hook of {hook} runs on the host" if hook else why_not_capturable(member.optimizer)
    if reason is not None:
        raise CannotCapture(reason)
    if member.schedule is not None:
        try:
            changed = HyperparameterPreview(member).change_within(STEADY_STEPS)
        except HyperparameterChanged as error:
            raise CannotCapture(str(error)) from error
        if changed is not None:
            raise CannotCapture(f"its schedule changes {changed}, which a captured step holds as a constant")
    track = Track([member], device_data, graphs)
    graphs.fork([track.stream])  # the member's first step may still be running
    try:
        with graphs.on_stream(track.stream):
            try:
                _probe(track, batches[0])
                track.work.extend([rows] for rows in batches[1 : 1 + PROOF_STEPS])
                different = _prove(track)
                track.finish()
            except BaseException:
                track.drop()  # on its stream, which may not have computed the losses yet
                raise
    except BaseException:
        track.close()
        raise
    finally:
        graphs.join([track.stream])
    if different is not None:
        track.close()
        raise CannotCapture(f"{different} differs between a captured step and the same step taken alone")
    return track


def _probe(track: Track, rows: Indices) -> None:
    """Take one step without a graph, and look for waits for the device and state on the host."""
    member, device_data = track.members[0], track.device_data
    mark = member.randomness.mark()
    python = PythonState(member.model, member.optimizer, [("loss_fn", member.loss_fn)])
    loss, waits = _watched_step(member, device_data, rows)
    changed = python.first_change()
    with member.randomness.active():
        member.advance_schedule()
    member.add_losses(loss.double().reshape(1), [len(rows)])
    member.advance(device_data.rows, 1)
    if waits:
        raise CannotCapture(f"its step waits for the device: {waits}")
    if member.randomness.drew_on_host(mark):
        raise CannotCapture("its step draws random numbers on the host")
    if changed is not None:
        raise CannotCapture(f"its step changes {changed}, which a captured step cannot follow")


def _watched_step(member: Member, device_data: DeviceData, rows: Indices) -> tuple[torch.Tensor, str]:
    """A step alone: its loss, and where it waited for the device."""
    indices = torch.from_numpy(rows).to(device_data.device)
    with member.randomness.active(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device_data.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            loss = take_step(member, take_rows(device_data.data, indices))
        finally:
            if device_data.device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    found = [str(warning.message) for warning in caught if "called a synchroniz" in str(warning.message)]
    return loss, found[0].splitlines()[0] if found else ""


def _prove(track: Track) -> str | None:
    """Replay steps, go back, and take them without a graph. Returns the name of a tensor that differs, or None."""
    lane = track.ready()
    try:
        lane.capture()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # PyTorch and the member's own code may raise anything
        _take_without_graph(track)
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise CannotCapture(f"its step cannot be captured: {line}") from error
    return _compare(track).first()


@dataclass(frozen=True)
class StepComparison:
    """A step that was taken both ways."""

    tensors: BitDifferences
    changed: str | None = None  # a value of Python

    def first(self) -> str | None:
        """The name of what differs, or None. Waits for the device."""
        return self.changed or self.tensors.first()


def check_again(track: Track, rows: Indices) -> StepComparison | None:
    """Take one more step both ways, and keep the step alone; the host does not wait for the device.

    A batch of a size that was not captured is taken alone in any case, and not compared.
    """
    assert track.graphs is not None
    track.graphs.fork([track.stream])
    track.work.append([rows])
    found = None
    try:
        with track.graphs.on_stream(track.stream):
            if track.ready().replay is not None:
                found = _compare(track)
            else:
                track.advance(1)
            track.finish()
    finally:
        track.graphs.join([track.stream])
    return found


def _compare(track: Track) -> StepComparison:
    member, lane = track.members[0], track.ready()
    tensors, mark = changing_tensors(member), member.randomness.mark()
    before = copy_tensors(tensors)
    code = [("loss_fn", member.loss_fn)]
    python = PythonState(member.model, member.optimizer, code, ignored=tensors.values())  # steps set some, such as lr
    assert lane.replay is not None
    for _ in range(lane.filled):
        lane.replay.replay()
    track.draws = member.randomness.differs(mark)
    replayed, losses = copy_tensors(tensors), lane.losses[: lane.filled].clone()
    write_back(tensors, before)
    python.put_back()
    member.randomness.go_back(mark)
    lane.cursor.zero_()
    _take_without_graph(track)
    ours = {"the loss": lane.losses[: lane.filled], **_on_device(tensors, track)}
    theirs = {"the loss": losses, **_on_device(replayed, track)}
    return StepComparison(BitDifferences(ours, theirs), python.first_change())


def _take_without_graph(track: Track) -> None:
    """Take the prepared steps without a graph."""
    lane = track.ready()
    with track.members[0].randomness.active():
        for _ in range(lane.filled):
            lane.step()
    lane.done = lane.filled


def _on_device(tensors: dict[str, torch.Tensor], track: Track) -> dict[str, torch.Tensor]:
    """The tensors on the device: counters on the host are not part of a graph."""
    return {name: tensor for name, tensor in tensors.items() if tensor.device.type == track.device_data.device.type}
