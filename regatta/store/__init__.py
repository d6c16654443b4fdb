"""Keeps weights: tensors enter under a name, the same bits leave.

    states.py    the states of models in training, a file each

Knows nothing of engines, searches or people; imports no framework.
"""
