"""The parameter store: tensors enter under a name, and the same bits leave.

    store.py                 the store: put, get, reencode, gc, fsck; each delegates to a module below
    writer.py, commit.py     encode tensors; store snapshots in one transaction
    reader.py, slices.py     decode tensors, whole or in part
    export.py                a snapshot as a safetensors file
    folder.py, remote.py     pack files in the store's folder, and elsewhere
    index.py, database.py    the SQLite index; sqlite.py imports Python's own SQLite
    torch_tensors.py         tensors of the store as PyTorch tensors
    FORMAT.md                all bytes on the disk
    format/                  tensors to bytes and back
    maintenance/             check, repair, collect and rewrite what is stored
    archive/                 the planner that stores all versions in less space
    states/                  states of models in training: files, and how they move into the store

The store knows nothing about the engine or searches, and imports no framework.
"""
