"""Layers of networks and distributions of weights, for `desc`, `diff` and their pages."""
