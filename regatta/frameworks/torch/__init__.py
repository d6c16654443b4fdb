"""PyTorch: `framework.py` has the verbs.

state.py        the state of a model: out to a file, and back without loss
capturable.py   optimizers in the form that a CUDA graph can hold
files.py        PyTorch's own files, read without unpickling code
group.py        data-parallel training by a group of processes
rendezvous.py   how the processes of a group find each other
"""
