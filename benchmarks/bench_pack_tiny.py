"""256 tiny models (32-32-10, batch 16) on a GPU: stacked kernels that may round differently, exact graphs beside.

python benchmarks/bench_pack_tiny.py
"""

from __future__ import annotations

import numpy as np
import torch
from pack_models import TINY, adam, eager_rows, graph_seconds, loaded, need_gpu, packed_seconds
from report import Bar, report

import regatta.pack

MEMBERS, STEPS = 256, 100


def main() -> None:
    need_gpu()
    seconds = {what: MEMBERS * value for what, value in eager_rows(TINY, 50).items()}
    seconds["one after another, a CUDA graph each"] = MEMBERS * graph_seconds(
        TINY, lambda p: adam(p, fused=True, capturable=True), 50
    )
    data = TINY.data("cuda")
    held = {}
    for what, options in {"pack, exact": {}, "pack, fast": {"numerics": "fast"}}.items():
        pack = regatta.pack.Pack("cuda", **options)
        held[what] = loaded(pack, TINY, MEMBERS, adam)
        pack.train(data, steps=40)
        seconds[what] = packed_seconds(pack, data, STEPS)
        print(what, pack.plan()[0].tier, pack.plan()[0].reason)
    plain = min(seconds["eager"], seconds["eager, fused optimizer"])
    rows = [[what, 1e3 * value, plain / value] for what, value in seconds.items()]
    bars = [Bar("fast pack over one after another", plain / seconds["pack, fast"], 100.0, "at least")]
    pairs = zip(held["pack, exact"], held["pack, fast"], strict=True)
    gaps = [float(np.abs(a.losses - b.losses).max()) for a, b in pairs]
    notes = {"members": MEMBERS, "steps": STEPS, "largest gap of a loss between fast and exact": max(gaps)}
    print(notes, torch.cuda.memory_reserved() / 1e9)
    report("pack_tiny", ["what", "ms for a step of all", "times as fast"], rows, bars=bars, notes=notes)


if __name__ == "__main__":
    main()
