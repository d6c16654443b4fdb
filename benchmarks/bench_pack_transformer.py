"""A pack against one after another: transformer of width 128, 4 layers, 64 tokens, batch 32, 32 members.

Attention is written out; beside it stands the same model from PyTorch's own layers.

The baseline is the better of plain PyTorch and PyTorch with a fused optimizer; the second one is each model under a
CUDA graph of its own. Times are of one step of all members, batches gathered on the device included.

    python benchmarks/bench_pack_transformer.py
"""

from __future__ import annotations

from pack_models import LAYERS, TRANSFORMER
from pack_throughput import family_report

if __name__ == "__main__":
    family_report("pack_transformer", [TRANSFORMER, LAYERS], members=32, over_eager=18.0, over_graphs=2.8)
