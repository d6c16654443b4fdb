"""What a step of a member may change: it is copied before a comparison, compared, and put back.

member_state.py      all tensors, and the whole member
hyperparameters.py   what parameter groups hold, and what schedules make of it
host_arithmetic.py   arithmetic of schedules that a device may round otherwise
schedule_guard.py    what a user's schedule may not do in a pack
python_state.py      which attributes, closures and globals the user's code reaches
watched.py           these values as they were
randomness.py        each member's own random streams, and those of the process
"""
