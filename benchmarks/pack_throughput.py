"""The table of one family: all peers, then the pack, in one run."""

from __future__ import annotations

import torch
from pack_models import Family, adam, eager_rows, graph_seconds, loaded, need_gpu, packed_seconds
from report import Bar, report

import regatta.pack


def family_report(
    name: str, family: Family, members: int, over_eager: float, over_graphs: float, steps: int = 50, tf32: bool = True
) -> None:
    need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.deterministic = True  # for all alike: what an exact pack asks for
    seconds = {what: members * value for what, value in eager_rows(family, steps).items()}
    solo = graph_seconds(family, lambda p: adam(p, fused=True, capturable=True), steps)
    seconds["one after another, a CUDA graph each"] = members * solo
    pack = regatta.pack.Pack("cuda")
    data = family.data("cuda")
    held = loaded(pack, family, members, adam)
    pack.train(data, steps=40)
    seconds["pack"] = packed_seconds(pack, data, steps)
    plain = min(seconds["eager"], seconds["eager, fused optimizer"])
    rows = [[what, 1e3 * value, plain / value] for what, value in seconds.items()]
    bars = [
        Bar("over one after another", plain / seconds["pack"], over_eager, "at least"),
        Bar("over one after another under graphs", members * solo / seconds["pack"], over_graphs, "at least"),
    ]
    notes = {
        "family": family.name,
        "members": members,
        "batch": family.batch,
        "steps": steps,
        "tf32": tf32,
        "plan": pack.plan()[0].reason,
        "tiers": sorted({placement.tier for placement in pack.plan()}),
        "megabytes_per_member": held[0].figures.peak_bytes / 1e6,
        "reserved_gigabytes": torch.cuda.memory_reserved() / 1e9,
    }
    print(notes["plan"], notes["tiers"])
    report(name, ["what", "ms for a step of all", "times as fast"], rows, bars=bars, notes=notes)
