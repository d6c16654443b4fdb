"""Data sets in partitions: arrays or files enter, partitions that workers can map into memory leave.

    dataset.py       Dataset: its partitions, checked, described and placed on workers
    partition.py     one partition: what its header says, and its arrays
    formats/         safetensors, npz, Parquet: the same two verbs, `inspect` and `read`
    arrays.py        arrays as their caller gives them, checked
    split.py         how many rows each partition gets, and which
    write.py         partitions as files: whole or not there at all
    fingerprint.py   what the data is, wherever it lies
    availability.py  which worker holds which partition
    order.py         the seeded order of rows

It knows no framework: whatever trains gets NumPy arrays, or what the user's own `input_fn` reads.
"""

from regatta.data.dataset import Dataset
from regatta.data.order import batch_order
from regatta.data.partition import Column, Partition, read_partition

__all__ = ["Column", "Dataset", "Partition", "batch_order", "read_partition"]
