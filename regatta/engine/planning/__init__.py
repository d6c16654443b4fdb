"""Decides how a run trains, and decides again when its units prove the plan wrong.

planner.py     makes the plan from what profiling found
replanner.py   applies the plan to the run, and replaces it when it was wrong
packer.py      which trials are trained as a pack
"""
