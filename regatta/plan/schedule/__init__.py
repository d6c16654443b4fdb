"""Hop order: which model each idle worker trains next.

units.py, estimates.py          units, and how long each takes
hopper.py                       Hopper: events in, assignments out; it keeps the four invariants
board.py, timetable.py          its state as arrays, with sums kept up to date
invariants.py                   the same sums checked from scratch
rules.py, rule_names.py         which model an idle worker trains next, by name
portfolio.py, rollout.py        `auto`: plays rules ahead and takes the one that ends first
offline/                        schedules made ahead of time
teams.py                        several Hoppers side by side
partition_places.py             where partitions are
simulate.py, lower_bounds.py    the Hopper on a simulated clock; what no schedule can beat
"""
