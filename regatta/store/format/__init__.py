"""Tensors to bytes on disk and back, as FORMAT.md specifies.

dtypes.py, tensor_id.py        element types; tensors and their ids
planes.py, deltas.py           byte planes; differences to another tensor
codecs.py, pcodec_blocks.py    entropy coders; numbers by pcodec, in blocks
lossy.py                       schemes that keep fewer bits, on request
encodings.py                   the encodings by their numbers on disk
pack_file.py, manifest.py      pack files, and the snapshots that they hold
"""
