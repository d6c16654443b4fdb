"""A pack against one after another: MLP 3072-512-512-512-10, batch 64, Adam, 32 members.

The baseline is the better of plain PyTorch and PyTorch with a fused optimizer; the second one is each model under a
CUDA graph of its own. Times are of one step of all members, batches gathered on the device included.

    python benchmarks/bench_pack_mlp.py
"""

from __future__ import annotations

from pack_models import MLP
from pack_throughput import family_report

if __name__ == "__main__":
    family_report("pack_mlp", [MLP], members=32, over_eager=18.0, over_graphs=3.3)
