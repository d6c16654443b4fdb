"""Preprocess once, share with many: what one process made of a partition, many read where it lies.

    settings.py   Sharing: whether, and within which bounds
    ledger.py     which blocks are there, who wants and who holds them, what to make, spill or drop next; pure
    blocks.py     arrays as a block of shared memory, or of an unnamed file, and back without a copy
    wire.py       messages between our own processes, with the open file of a block
    lines.py      what broker, readers and makers are connected by: sockets here, elsewhere what others bring
    broker.py     a thread of the controller: hears readers and makers, does what the ledger says
    reader.py     a worker's side: asks for a block and maps it

A block has no name: on one machine it is an open file that goes from process to process and is gone when the last of
them closes it or dies, however it dies. It knows neither frameworks nor workers: who makes blocks, and how, is told to
the broker.
"""

from regatta.data.sharing.settings import Sharing

__all__ = ["Sharing"]
