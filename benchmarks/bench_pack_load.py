"""What it costs to load or free a member of a pack of sixteen that is training: until the next step is on its way.

A newcomer takes its first steps alone, is captured and compared with itself; the graphs of the others stay. Beside it,
what capturing all sixteen again takes, which a single joint graph would need each time.

    python benchmarks/bench_pack_load.py
"""

from __future__ import annotations

import statistics
import time

import torch
from pack_models import CNN, MLP, TRANSFORMER, Family, adam, loaded, need_gpu, order
from report import Bar, report

import regatta.pack

MEMBERS, TIMES = 16, 5


def measure(family: Family) -> list[object]:
    pack, data = regatta.pack.Pack("cuda"), family.data("cuda")
    loaded(pack, family, MEMBERS, adam)
    start = time.perf_counter()
    pack.train(data, steps=12)
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    start = time.perf_counter()
    pack.train(data, steps=12)
    torch.cuda.synchronize()
    twelve = time.perf_counter() - start
    loads, frees = [], []
    for turn in range(TIMES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        pack.free(pack.members[0])
        pack.train(data, steps=1)
        torch.cuda.synchronize()
        frees.append(time.perf_counter() - start)
        model = family.model(100 + turn, "cuda")
        start = time.perf_counter()
        pack.load(
            model, adam(model.parameters()), family.loss, family.batch, order=order(turn, family.batch), name=f"n{turn}"
        )
        pack.train(data, steps=12)
        torch.cuda.synchronize()
        loads.append(time.perf_counter() - start - twelve)
    assert all(placement.tier == "graph" for placement in pack.plan()), pack.plan()
    return [family.name, statistics.median(loads), statistics.median(frees), first - twelve]


def main() -> None:
    need_gpu()
    rows = [measure(family) for family in (MLP, TRANSFORMER, CNN)]
    bars = [Bar(f"{row[0]}: load, s", row[1], 0.5) for row in rows] + [
        Bar(f"{row[0]}: free, s", row[2], 0.5) for row in rows
    ]
    columns = ["family", "load and capture, s", "free and go on, s", "all sixteen, s"]
    report("pack_load", columns, rows, bars=bars, notes={"members": MEMBERS, "times": TIMES})


if __name__ == "__main__":
    main()
