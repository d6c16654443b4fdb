"""32 tiny models (32-32-10, batch 16) on two CPU cores: stacked, exact, against one after another.

One after another is timed with one thread and with two, and the better counts; the pack runs in one thread, where it is
proven equal to training alone. Every parameter and optimizer value is compared at the end.

    taskset -c 0,1 python benchmarks/bench_pack_cpu.py
"""

from __future__ import annotations

import torch
from pack_models import TINY, adam, batches_on_device, eager_seconds, loaded, packed_seconds
from report import Bar, report

import regatta.pack
from regatta.pack.state import changing, first_difference

MEMBERS, STEPS = 32, 200


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


def main() -> None:
    seconds = {}
    for threads in (2, 1):
        torch.set_num_threads(threads)
        word = "threads" if threads > 1 else "thread"
        seconds[f"one after another, {threads} {word}"] = MEMBERS * eager_seconds(TINY, adam, STEPS, "cpu")
    pack = regatta.pack.Pack("cpu")
    members = loaded(pack, TINY, MEMBERS, adam, "cpu")
    data = TINY.data("cpu")
    pack.train(data, steps=40)
    seconds["pack, 1 thread"] = packed_seconds(pack, data, STEPS, "cpu")
    alone = plain_loop(members[0].taken)
    different = sum(first_difference(changing(m), theirs) is not None for m, theirs in zip(members, alone, strict=True))
    best = min(value for what, value in seconds.items() if what.startswith("one"))
    rows = [[what, 1e3 * value, best / value] for what, value in seconds.items()]
    bars = [
        Bar("over one after another", best / seconds["pack, 1 thread"], 10.0, "at least"),
        Bar("members that differ from training alone in any bit", different, 0),
    ]
    print(pack.plan()[0].tier, pack.plan()[0].reason)
    notes = {"members": MEMBERS, "steps": members[0].taken, "plan": pack.plan()[0].reason}
    report("pack_cpu", ["what", "ms for a step of all", "times as fast"], rows, bars=bars, notes=notes)


if __name__ == "__main__":
    main()
