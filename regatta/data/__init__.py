"""Data sets in partitions: arrays or files enter; partitions that workers can map into memory leave.

    dataset.py         Dataset: its partitions, checked, described and assigned to workers
    dataset_choice.py  several data sets for one sweep, by a value of the configuration
    partition.py       one partition: its header and its arrays
    formats/           safetensors, npz, Parquet: each with the functions `inspect` and `read`
    arrays.py          the caller's arrays, checked
    torch_rows.py      the rows of a PyTorch Dataset, read in order
    split.py           how many rows each partition gets, and which
    write.py           partitions as files, written atomically
    row_files.py       partitions that are written while their rows are read
    fingerprint.py     a hash of the data that does not depend on where it is
    availability.py    which worker holds which partition
    order.py           the seeded order of rows
    sharing.py         whether and how preprocessing is shared

It does not know any framework: training gets NumPy arrays, or what the user's own `input_fn` reads.
"""

from regatta.data.dataset import Dataset
from regatta.data.order import batch_order
from regatta.data.partition import Column, Partition, read_partition

__all__ = ["Column", "Dataset", "Partition", "batch_order", "read_partition"]
