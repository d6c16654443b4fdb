"""Networks from PyTorch modules and back.

from_torch.py   the network of a module
traces.py       three ways to see what a module computes
modules.py      layers of torch.nn in the common vocabulary
calls.py        functional calls in the common vocabulary
to_torch.py     a runnable module from a network; network_module.py is its class
initialise.py   weights for layers that have none
trial_run.py    the layer in which a network would fail
layers.py       one runnable part for each kind of layer
"""
