"""Checks, repairs and moves what a store holds.

fsck.py            checks a store
repair.py          repairs a damaged store
index_check.py     finds what the index has lost; gc refuses then
rebuild_index.py   makes a new index from the pack files
gc.py              removes what nothing needs
rewrite.py         moves tensors into other encodings and pack files
"""
