"""Plans how to store all versions in less space, and rewrites the store by that plan.

archive.py                           the archive pass over a store
candidates.py, speeds.py             which deltas are worth considering, and what they cost
storage_graph.py, storage_tree.py    all options to store each tensor; one plan among them
spanning_trees.py, pas.py, refine.py the algorithms: MST, SPT, LAST, PAS-MT, PAS-PT, local search
budgets.py, planner.py               how long reading a snapshot may take; the planner
"""
