"""The table of one family: all peers, then the pack, in one run."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from pack_models import Family, adam, eager_rows, graph_seconds, loaded, need_gpu, packed_seconds
from report import Bar, report

import regatta.pack

GRAPHS = "one after another, a CUDA graph each"
# Where cuBLAS on several streams shall give the same bits, PyTorch asks for this size of its work space or :4096:8.
# All ways have it in the rows that the bars are about; then all of them once more with the size that PyTorch takes
# by itself, because it makes single models faster and packs slower.
SMALL, OWN = ":16:8", "PyTorch's own"


def measured_apart(family: Family, members: int, steps: int, tf32: bool, workspace: str) -> Any:
    """In a process of its own: cuBLAS reads the setting once."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_measured, family, members, steps, tf32, workspace).result()


def _measured(family: Family, members: int, steps: int, tf32: bool, workspace: str) -> Any:
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    if workspace != OWN:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = workspace
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.deterministic = True  # for all alike: what an exact pack asks for
    return measure(family, members, steps)


def measure(family: Family, members: int, steps: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds of one step of all members by each way, and facts to keep."""
    solo = _solo_graph(family, steps)
    seconds = {what: members * value for what, value in eager_rows(family, steps).items()}
    solo = min(solo, _solo_graph(family, steps))  # by turns a tenth slower after other work in the same process
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


def _solo_graph(family: Family, steps: int) -> float:
    return graph_seconds(family, lambda p: adam(p, fused=True, capturable=True), steps)


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
    rows, bars, notes = [], [], {"members": members, "steps": steps, "tf32": tf32}
    for family, workspace in [(families[0], SMALL), (families[0], OWN), *((other, SMALL) for other in families[1:])]:
        seconds, facts = measured_apart(family, members, steps, tf32, workspace)
        plain = min(seconds["eager"], seconds["eager, fused optimizer"])
        rows += [
            [family.name, workspace, what, 1e3 * value, plain / value, seconds[GRAPHS] / value]
            for what, value in seconds.items()
        ]
        notes[f"{family.name}, work space {workspace}"] = {**facts, "batch": family.batch}
        bars = bars or [
            Bar("over one after another", plain / seconds["pack"], over_eager, "at least"),
            Bar("over one after another under graphs", seconds[GRAPHS] / seconds["pack"], over_graphs, "at least"),
        ]
        print(family.name, facts["plan"], facts["tiers"], flush=True)
    columns = ["family", "cuBLAS work space", "what", "ms for a step of all", "times as fast", "of single graphs"]
    torch.zeros(1, device="cuda")  # the report names the GPU that is in use
    report(name, columns, rows, bars=bars, notes=notes)
