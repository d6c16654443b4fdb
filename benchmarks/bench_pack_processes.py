"""Eight members of a pack against eight plain processes on the same GPU, and against four and one.

python benchmarks/bench_pack_processes.py
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import torch
from pack_models import MLP, adam, batches_on_device, loaded, need_gpu, packed_seconds
from report import Bar, report

import regatta.pack

MEMBERS, STEPS = 8, 300


def train(seed: int, barrier: Any, results: Any) -> None:
    """A process that trains one model; all begin and end their timed steps together."""
    torch.backends.cuda.matmul.allow_tf32 = True
    data, model = MLP.data("cuda"), MLP.model(seed, "cuda")
    optimizer, rows = adam(model.parameters(), seed, fused=True), batches_on_device(MLP, seed, STEPS, "cuda")
    for part in (rows[:20], rows):
        torch.cuda.synchronize()
        barrier.wait()
        start = time.perf_counter()
        for taken in part:
            optimizer.zero_grad(set_to_none=True)
            MLP.loss(model, tuple(x[taken] for x in data)).backward()
            optimizer.step()
        torch.cuda.synchronize()
    results.put(time.perf_counter() - start)


def process_seconds(count: int) -> float:
    """One step of every process, the slowest counted."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(count), context.Queue()
    workers = [context.Process(target=train, args=(seed, barrier, results)) for seed in range(count)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    return max(found) / STEPS


def main() -> None:
    need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = True
    seconds = {f"{count} plain processes": process_seconds(count) / count for count in (1, 4, MEMBERS)}
    pack, data = regatta.pack.Pack("cuda"), MLP.data("cuda")
    loaded(pack, MLP, MEMBERS, adam)
    pack.train(data, steps=40)
    seconds[f"pack of {MEMBERS}"] = packed_seconds(pack, data, STEPS) / MEMBERS
    ratio = seconds[f"{MEMBERS} plain processes"] / seconds[f"pack of {MEMBERS}"]
    rows = [[what, 1e3 * value] for what, value in seconds.items()]
    bars = [Bar("pack over plain processes", ratio, 2.0, "at least")]
    report(
        "pack_processes", ["what", "ms per step of one model"], rows, bars=bars, notes={"steps": STEPS, "tf32": True}
    )


if __name__ == "__main__":
    main()
