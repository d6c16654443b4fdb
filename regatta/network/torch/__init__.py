"""Networks from PyTorch modules and back.

from_torch.py   the network of a module
traces.py       three ways to see what a module computes
modules.py      layers of torch.nn in the common vocabulary
calls.py        functional calls in the common vocabulary
to_torch.py     a runnable module from a network
layers.py       one runnable part for each kind of layer
"""
