"""What runs where: workers, models and estimated times enter; assignments, plans and explanations leave.

    schedule/   hop order: the Hopper, its rules, schedules made ahead of time, the simulator
    strategy/   hop, pack, group or share: costs, sizes, the choice, and the plan that explains it
    fleet/      devices for many unlike models, as they converge
    papers/     the papers' own algorithms and experiments, as baselines; nothing imports them at run time

Pure: no clock, no files, no processes, no frameworks. The same events give the same assignments.
"""
