"""Measure before deciding: a few batches of each model, of packs and of groups.

session.py   profiles everything that a plan needs
models.py    a few batches of each configuration
packs.py     several models side by side
groups.py    what exchanging gradients costs a group of workers
results.py   what was found
cache.py     profiles of earlier runs of the same functions, data and devices
"""
