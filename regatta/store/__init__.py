"""Keeps weights: tensors enter under a name, the same bits leave.

    store.py       the parameter store: put, get, reencode, gc, fsck, and where each is done
    FORMAT.md      what is on the disk
    identity.py    what a tensor is, and its id;  manifest.py  a snapshot, and its
    dtypes, planes, codecs, runs, deltas, lossy, encodings     words to streams and back
    pack, folder, database, index, locks                       streams to files, files to an index
    writer, commit                                             a snapshot is stored
    reader, slices, snapshot, remote                           it is read, whole or in part, from here or elsewhere
    rewrite, gc, fsck, repair, rebuild                         what is stored is moved, collected, checked and mended
    graph, tree, trees, planner, pas, refine, budgets, candidates, speeds, archive     how to hold all of it in less
    states.py      the states of models in training, a file each;  kept.py  those that went into the store

Knows nothing of engines, searches or people; imports no framework.
"""
