"""States of models in training.

state_files.py     a safetensors file each: the last one, and one per epoch
state_archive.py   states that moved into the parameter store, and come back as the same files
archive_run.py     moves the states of a run into the store, while it runs or later
"""
