"""A pack against one after another: residual CNN of 32 channels on 32 x 32 images, batch 64, 16 members.

The network halves the picture after each of its three blocks; beside it stands one that never does, whose kernels
fill the GPU by themselves: there is less to gain from a pack.

The baseline is the better of plain PyTorch and PyTorch with a fused optimizer; the second one is each model under a
CUDA graph of its own. Times are of one step of all members, batches gathered on the device included.

    python benchmarks/bench_pack_cnn.py
"""

from __future__ import annotations

from pack_models import CNN, CNN_FULL
from pack_throughput import family_report

if __name__ == "__main__":
    family_report("pack_cnn", [CNN, CNN_FULL], members=16, over_eager=4.0, over_graphs=1.4)
