"""Plans how to hold all versions in less space, and does it.

archive.py                           the pass over a store
candidates.py, speeds.py             which deltas are worth considering, and what they cost
storage_graph.py, storage_tree.py    every way to store each tensor; one plan among them
spanning_trees.py, pas.py, refine.py the algorithms: MST, SPT, LAST, PAS-MT, PAS-PT, local search
budgets.py, planner.py               how long reading may take; the planner
"""
