"""Measures before a run what its units cost, and whether packs and groups pay.

session.py   one profiling session, and the profiling of a run, which writes the results into the journal
models.py    a few batches of each configuration
packs.py     several models side by side
groups.py    one model on a group of workers
cache.py     the profiles of earlier runs
"""
