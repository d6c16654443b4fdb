"""Preprocess once, share with many workers.

    preprocess.py          what `input_fn` and `transform_fn` make of a partition
    preprocess_worker.py   a process that makes blocks for all workers
    ledger.py              which blocks exist, which readers wait, what to make, spill or drop next; pure
    blocks.py              arrays in shared memory or in an unnamed file, and back without a copy
    broker.py              a thread of the controller: serves readers and preprocess workers
    block_reader.py        a worker's side: asks for a block and maps it
    connections.py         how these reach each other: messages, with the open file of a block

A block has no name: on one machine it is an open file that goes from process to process. The kernel frees it when the
last process closes it or dies.
"""
