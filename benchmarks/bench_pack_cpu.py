"""32 tiny models (32-32-10, batch 16) on two CPU cores: stacked, exact, against one after another.

One after another is timed with one thread and with two, and the better counts; the pack runs in one thread, where it is
proven equal to training alone. The pack is also timed without the comparisons of later steps, to see what they cost, in
time of the processor. All take turns, many times, and the medians count: a machine that is busy with other things slows
all of them down. Every parameter and optimizer value is compared at the end.

    taskset -c 0,1 python benchmarks/bench_pack_cpu.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from pack_models import TINY, adam, batches_on_device, loaded, timed
from report import Bar, report

import regatta.pack
from regatta.pack.checks import check_steps
from regatta.pack.stacked import stacked_tier
from regatta.pack.state.member_state import BitDifferences, changing_tensors

MEMBERS, STEPS, TURNS = 32, 50, 15
ALONE = {1: "one after another, 1 thread", 2: "one after another, 2 threads"}
PACK, UNCHECKED = "pack, 1 thread", "the same without comparing later steps"
PAIRS = 4  # of calls with and without comparisons, in each turn
COST = "processor time with comparisons, over the time without"


def plain_loop(steps: int) -> list[dict[str, torch.Tensor]]:
    """The same models trained one after another, with nothing of ours."""
    data, found = TINY.data("cpu"), []
    for seed in range(MEMBERS):
        model = TINY.model(seed, "cpu")
        optimizer = adam(model.parameters(), seed)
        for rows in batches_on_device(TINY, seed, steps, "cpu"):
            optimizer.zero_grad(set_to_none=True)
            TINY.loss(model, tuple(part[rows] for part in data)).backward()
            optimizer.step()
        names = {p: name for name, p in model.named_parameters()}
        states = {f"optimizer/{names[p]}/{k}": v for p, s in optimizer.state.items() for k, v in s.items()}
        found.append({**dict(model.named_parameters()), **states})
    return found


def measured(pack: Any, data: Any) -> list[dict[str, float]]:
    """Seconds for a step of all members by each way, turn after turn."""
    one, found = Solo(data), []
    for _ in range(TURNS):
        turn = {}
        for threads in (2, 1):
            torch.set_num_threads(threads)
            turn[ALONE[threads]] = MEMBERS * timed(one.run, "cpu", repeats=1) / STEPS
        times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for number in range(PAIRS):
            for checked in (True, False) if number % 2 else (False, True):  # each goes first as often as the other
                times[checked].append(packed(pack, data, checked))
        for what, checked in ((PACK, True), (UNCHECKED, False)):
            turn[what] = statistics.median(seconds for seconds, _ in times[checked])
        processor = {checked: statistics.median(seconds for _, seconds in times[checked]) for checked in times}
        found.append({**turn, COST: processor[True] / processor[False]})
    return found


def packed(pack: Any, data: Any, checked: bool) -> tuple[float, float]:
    """Seconds for a step of all members in an epoch, with or without comparisons: by the clock, of the processor."""
    stacked_tier.check_steps = check_steps if checked else lambda *_: []  # type: ignore[attr-defined]
    steps, start = pack.members[0].epoch_steps(pack.device_data.rows), time.process_time()
    seconds = timed(lambda: pack.train(data, steps=steps), "cpu", repeats=1)
    return seconds / steps, (time.process_time() - start) / steps


class Solo:
    """Plain training of one model, with nothing of ours."""

    def __init__(self, data: Any) -> None:
        self.data, self.model = data, TINY.model(0, "cpu")
        self.optimizer = adam(self.model.parameters())
        self.rows = batches_on_device(TINY, 0, STEPS, "cpu")

    def run(self) -> None:
        for taken in self.rows:
            self.optimizer.zero_grad(set_to_none=True)
            TINY.loss(self.model, tuple(part[taken] for part in self.data)).backward()
            self.optimizer.step()


def main() -> None:
    torch.set_num_threads(1)
    pack, data = regatta.pack.Pack("cpu"), TINY.data("cpu")
    members = loaded(pack, TINY, MEMBERS, adam, "cpu")
    pack.train(data, steps=40)
    turns = measured(pack, data)
    cost = statistics.median(turn.pop(COST) for turn in turns)
    seconds = {what: statistics.median(turn[what] for turn in turns) for what in turns[0]}
    ratios = sorted(min(turn[ALONE[1]], turn[ALONE[2]]) / turn[PACK] for turn in turns)
    alone = plain_loop(members[0].taken)
    pairs = [(changing_tensors(member), theirs) for member, theirs in zip(members, alone, strict=True)]
    different = sum(BitDifferences(ours, theirs).first() is not None for ours, theirs in pairs)
    best = min(seconds[ALONE[1]], seconds[ALONE[2]])
    rows = [[what, 1e3 * value, best / value] for what, value in seconds.items()]
    bars = [
        Bar("over one after another, median of the turns", statistics.median(ratios), 10.0, "at least"),
        Bar(COST, cost, 1.02),
        Bar("members that differ from training alone in any bit", different, 0),
    ]
    print(pack.plan()[0].tier, pack.plan()[0].reason)
    notes = {"members": MEMBERS, "steps": members[0].taken, "plan": pack.plan()[0].reason, "turns": TURNS}
    notes |= {"lowest ratio of a turn": ratios[0], "highest": ratios[-1]}
    report("pack_cpu", ["what", "ms for a step of all", "times as fast"], rows, bars=bars, notes=notes)


if __name__ == "__main__":
    main()
