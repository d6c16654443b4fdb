"""What runs where: workers, models and estimated times enter, assignments and explanations leave.

    units.py      units, assignments, what the end of a unit means
    estimates.py  seconds of a unit: a pilot's guess, corrected as units finish
    board.py      the scheduler's state as arrays; rules look at it, roll-outs play on copies of it
    rules.py      which model an idle worker trains next
    hop.py        Hopper: events in, assignments out
    simulate.py   the same Hopper on a simulated clock

Pure: no clock, no files, no processes, no frameworks. The same events give the same assignments.
"""
