"""Layers of networks and distributions of weights, for `desc`, `diff` and their pages.

layers.py          networks layer by layer
parameters.py      how each tensor is distributed and stored
distributions.py   distributions from leading planes
"""
