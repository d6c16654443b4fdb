"""Schedules that are computed ahead of time and then followed.

open_shop.py              one epoch as an open-shop problem
solvers.py                MILP in HiGHS, and CP-SAT
vector_rearrangement.py   optimal when there are many more models than workers
rotation.py               all models rotate over the workers
replica_placement.py      which holder of a replicated partition trains which model
follow.py                 follows a schedule while the run goes on
"""
