"""What runs where: workers, models and estimated times enter; assignments, bounds and explanations leave.

    units.py, estimates.py    the words; seconds of a unit: a pilot's guess, corrected as units finish
    hop.py                    Hopper: events in, assignments out; it upholds the four invariants
    board.py, invariants.py   its state as arrays with sums kept up to date, and their check from scratch
    rules.py                  which model an idle worker trains next; planners.py has them by name
    portfolio.py, rollout.py  `auto`: rules and plans are played ahead, what ends first is taken
    rotation.py, vector.py, solvers.py (shop.py), placement.py   schedules made ahead; planned.py follows them
    simulate.py, bounds.py, what_if.py   the Hopper on a simulated clock; what nothing can beat; on other workers
    profile.py                what was measured of a sweep, as kinds of models
    choose.py, strategies.py, rehearsal.py, tree.py   one plan: hop, pack, group or share; costs, plays, and the result
    groups.py, fleet/         widths of groups by communication; devices for many unlike models, as they converge
    suites.py, regimes.py     the papers' experiments, and strategies against the planner, by name

Pure: no clock, no files, no processes, no frameworks. The same events give the same assignments.
"""
