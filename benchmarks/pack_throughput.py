"""The table of one family: all peers, then the pack, in one run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from pack_models import Family, adam, eager_rows, graph_seconds, loaded, need_gpu, packed_seconds
from report import Bar, report

import regatta.pack

GRAPHS = "one after another, a CUDA graph each"
# PyTorch asks for one of these two where cuBLAS on several streams shall give the same bits; all ways have it
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")


def measure(family: Family, members: int, steps: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds of one step of all members by each way, and facts to keep."""
    seconds = {what: members * value for what, value in eager_rows(family, steps).items()}
    solo = graph_seconds(family, lambda p: adam(p, fused=True, capturable=True), steps)
    seconds[GRAPHS] = members * solo
    pack, data = regatta.pack.Pack("cuda"), family.data("cuda")
    held = loaded(pack, family, members, adam)
    pack.train(data, steps=40)
    seconds["pack"] = packed_seconds(pack, data, 2 * steps)
    facts = {
        "plan": pack.plan()[0].reason,
        "tiers": sorted({placement.tier for placement in pack.plan()}),
        "megabytes_per_member": held[0].figures.peak_bytes / 1e6,
        "reserved_gigabytes": torch.cuda.memory_reserved() / 1e9,
    }
    return seconds, facts


def family_report(
    name: str,
    families: Sequence[Family],
    members: int,
    over_eager: float,
    over_graphs: float,
    steps: int = 50,
    tf32: bool = True,
) -> None:
    """The first family has the bars; the others show how far they carry."""
    need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.deterministic = True  # for all alike: what an exact pack asks for
    rows, bars, notes = (
        [],
        [],
        {"members": members, "steps": steps, "tf32": tf32, "cublas_workspace": os.environ["CUBLAS_WORKSPACE_CONFIG"]},
    )
    for family in families:
        seconds, facts = measure(family, members, steps)
        plain = min(seconds["eager"], seconds["eager, fused optimizer"])
        rows += [[family.name, what, 1e3 * value, plain / value] for what, value in seconds.items()]
        notes[family.name] = {**facts, "batch": family.batch}
        if family is families[0]:
            bars = [
                Bar("over one after another", plain / seconds["pack"], over_eager, "at least"),
                Bar("over one after another under graphs", seconds[GRAPHS] / seconds["pack"], over_graphs, "at least"),
            ]
        print(family.name, facts["plan"], facts["tiers"], flush=True)
    report(name, ["family", "what", "ms for a step of all", "times as fast"], rows, bars=bars, notes=notes)
