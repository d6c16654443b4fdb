"""Checks, repairs and moves what a store holds.

fsck.py            checks a store
repair.py          mends a damaged one
rebuild_index.py   a new index from the pack files
gc.py              removes what nothing needs
rewrite.py         moves tensors into other encodings and pack files
"""
