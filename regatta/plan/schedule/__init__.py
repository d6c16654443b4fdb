"""Hop order: which model each idle worker trains next.

units.py, estimates.py          units, and how long each takes
model_kinds.py                  which models take about equally long
hopper.py                       Hopper: events in, assignments out; it keeps the four invariants
board.py, timetable.py          its state as arrays, with sums kept up to date
rules.py, rule_names.py         which model an idle worker trains next, by name
portfolio.py, rollout.py        `auto`: simulates rules ahead and takes the one that ends first
offline/                        schedules that are computed ahead of time
teams.py                        several Hoppers side by side
partition_places.py             which workers hold each partition
simulate.py, lower_bounds.py    the Hopper on a simulated clock; bounds that no schedule can beat
"""
