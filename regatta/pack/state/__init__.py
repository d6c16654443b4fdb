"""What a step of a member may change: it is copied before a comparison, compared, and put back.

member_state.py      all tensors, and the whole member
hyperparameters.py   what parameter groups hold, and what schedules make of it
python_state.py      attributes, closures and counters of the user's code
randomness.py        each member's own random streams
"""
