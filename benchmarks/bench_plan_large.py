"""Plans for 10,000 unlike models on 1,000 workers: seconds and memory, each plan in a process of its own.

`choose` is the whole plan of strategies, for 10,000 models that are all different and for 200 kinds of 50. `allocation`
is the first allocation of devices by water filling, with the malleable bound. `voyage`, which is more than a plan and
has no bar, plays the allocation to the end: 180,000 epochs.

    python benchmarks/bench_plan_large.py
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time

from report import Bar, report

MODELS, WORKERS, EACH = 10_000, 1_000, 8


def choose_all_different() -> str:
    return _choose(MODELS)


def choose_kinds() -> str:
    return _choose(200)


def _choose(kinds: int) -> str:
    from regatta.plan.choose import choose
    from regatta.plan.groups import Communication
    from regatta.plan.strategies import Data, Kind, Site, Work

    draw = random.Random(0)
    made = []
    for number in range(kinds):
        packed = {size: 1 + draw.uniform(0.05, 1.0) * (size - 1) for size in (2, 4, 8, 16)}
        link = Communication(draw.uniform(0.02, 2.0), draw.uniform(2.0, 8.0), EACH)
        seconds = draw.lognormvariate(6.0, 1.0)
        made.append(Kind(f"k{number}", MODELS // kinds, 10, seconds, seconds / 30, 1e7, 4e8, packed, link))
    site = Site(WORKERS, EACH, 80e9, unit=0.01, bandwidth=1e9, share_start=5.0)
    chosen, plan = choose(Work(tuple(made), Data(50.0, 2.0, 1e10)), site, numerics="fast")
    return f"{chosen.name}, {plan.estimate.seconds / plan.bound:.3f} of the bound"


def allocation() -> str:
    import numpy as np

    from regatta.plan.fleet.machines import Machines
    from regatta.plan.fleet.policies import View
    from regatta.plan.fleet.simulate import malleable_bound
    from regatta.plan.fleet.suites import calibrated, make_policy

    problem, machines = calibrated(0, MODELS), Machines.of(WORKERS, EACH)
    bound = malleable_bound(problem.tasks, machines, problem.truth)
    view = View(machines, problem.tasks, problem.restart, epochs=np.zeros(MODELS), ready=np.zeros(MODELS))
    view.waiting, view.free = dict.fromkeys(range(MODELS)), set(range(WORKERS))
    started = make_policy("water").decide(view)
    return f"{len(started)} started, bound {bound:,.0f} s"


def voyage() -> str:
    from regatta.plan.fleet.machines import Machines
    from regatta.plan.fleet.suites import calibrated

    problem, machines = calibrated(0, MODELS), Machines.of(WORKERS, EACH)
    found = problem.run("water", machines)
    return f"{found.makespan / problem.bound(machines):.4f} of the bound"


PLANS = {p.__name__: p for p in (choose_all_different, choose_kinds, allocation, voyage)}


def child(name: str) -> None:
    begin = time.perf_counter()
    said = PLANS[name]()
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{seconds}\t{time.process_time()}\t{peak}\t{said}")


def main() -> None:
    rows: list[list[object]] = []
    bars = []
    for name in PLANS:
        words = [sys.executable, __file__, "--child", name]
        ended = subprocess.run(words, capture_output=True, text=True, check=True)
        wall, seconds, peak, said = ended.stdout.strip().split("\t")
        rows.append([name, float(wall), float(seconds), float(peak), said])
        if name != "voyage":
            bars.append(Bar(f"{name}: CPU s, with imports", float(seconds), 60.0))
        bars.append(Bar(f"{name}: peak memory, GB", float(peak), 4.0))
    notes = {"models": MODELS, "workers": WORKERS}
    report("plan_large", ["plan", "seconds", "CPU s", "peak GB", "what"], rows, bars=bars, notes=notes)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        main()
