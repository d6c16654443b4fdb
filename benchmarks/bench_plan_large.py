"""Plans for 10,000 unlike models on 1,000 workers: seconds and memory, each plan in a process of its own.

- `choose` is the whole plan of strategies, for 10,000 models that are all different and for 200 kinds of 50.
- `hopper` is the scheduler of hops as runs drive it: 1,000 partitions, one per worker, three epochs, 30 million units.
  From its making to the first units of all workers; then 5,000 ends of units that take otherwise than their pilots said
  (by 30%, and 5% from unit to unit), each with the next assignment and what may be read ahead; then a worker leaves and
  comes back. `hopper_evaluates` has as many evaluation partitions, `hopper_equal` models that are all alike,
  `hopper_replicas` two holders of each partition, half of them slower.
- `allocation` is the first allocation of devices by water filling, with the malleable bound. `voyage`, which is more
  than a plan and has no bar, plays the allocation to the end: 180,000 epochs.

    python benchmarks/bench_plan_large.py
"""

from __future__ import annotations

import heapq
import random
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from report import Bar, report

if TYPE_CHECKING:
    from regatta.plan.schedule.hopper import Hopper

MODELS, WORKERS, EACH = 10_000, 1_000, 8
EVENTS = 5_000


def choose_all_different() -> str:
    return _choose(MODELS)


def choose_kinds() -> str:
    return _choose(200)


def _choose(kinds: int) -> str:
    from regatta.plan.strategy.choose import choose
    from regatta.plan.strategy.costs import ClusterSpec, DataCosts, ModelKind, Workload
    from regatta.plan.strategy.groups_or_hops import Communication

    draw = random.Random(0)
    made = []
    for number in range(kinds):
        packed = {size: 1 + draw.uniform(0.05, 1.0) * (size - 1) for size in (2, 4, 8, 16)}
        link = Communication(draw.uniform(0.02, 2.0), draw.uniform(2.0, 8.0), EACH)
        seconds = draw.lognormvariate(6.0, 1.0)
        made.append(ModelKind(f"k{number}", MODELS // kinds, 10, seconds, seconds / 30, 1e7, 4e8, packed, link))
    site = ClusterSpec(WORKERS, EACH, 80e9, unit=0.01, bandwidth=1e9, share_start=5.0)
    chosen, plan = choose(Workload(tuple(made), DataCosts(50.0, 2.0, 1e10)), site, numerics="fast")
    return f"{chosen.name}, {plan.estimate.seconds / plan.bound:.3f} of the bound"


def hopper() -> str:
    return _hop()


def hopper_evaluates() -> str:
    return _hop(evals=WORKERS)


def hopper_equal() -> str:
    return _hop(spread=0.0)


def hopper_replicas() -> str:
    return _hop(replicas=2)


def _hop(evals: int = 0, replicas: int = 1, spread: float = 1.0) -> str:
    from regatta.plan.schedule.estimates import Estimates
    from regatta.plan.schedule.hopper import Hopper
    from regatta.plan.schedule.simulate import spread_partitions as holdings

    begin = time.process_time()
    draw = random.Random(0)
    estimates = Estimates([1000] * WORKERS, [300] * evals)
    rates = {f"m{number}": draw.lognormvariate(-5.0, spread) for number in range(MODELS)}
    for name, rate in rates.items():
        estimates.set_profile(name, rate * draw.lognormvariate(0.0, 0.3 * spread), rate / 3, 0.01)
    hopper = Hopper(WORKERS, evals, estimates=estimates)
    for worker, held in holdings(WORKERS, WORKERS, evals, replicas).items():
        hopper.add_worker(worker, *held)
    for name in rates:
        hopper.add_model(name, 3)
    drive = Drive(hopper, rates, draw, slow=replicas > 1)
    drive.assign()
    first = time.process_time() - begin
    assert len(hopper.running()) == WORKERS
    each = sorted(drive.event() for _ in range(EVENTS))
    left = drive.leave_and_return()
    mean, worst = 1e3 * sum(each) / EVENTS, 1e3 * each[-1]
    return f"first {first:.1f} s, then {mean:.2f} ms an event, {worst:.0f} at most; a worker {1e3 * left:.0f} ms"


class Drive:
    """Ends units of a hopper one after the other, in the order in which they would end."""

    def __init__(self, hopper: Hopper, rates: Mapping[str, float], draw: random.Random, slow: bool) -> None:
        self.hopper, self.rates, self.draw, self.slow = hopper, rates, draw, slow
        self.now = 0.0
        self.heap: list[tuple[float, float, str]] = []  # end, start, worker

    def assign(self) -> float:
        """CPU seconds that it took."""
        begin = time.process_time()
        started = self.hopper.assign(self.now)
        spent = time.process_time() - begin
        for assignment in started:
            rows = 1000.0 if assignment.unit.kind == "train" else 100.0
            pace = 1.5 if self.slow and int(assignment.worker[1:]) % 2 else 1.0
            seconds = rows * self.rates[assignment.unit.model] * pace * self.draw.lognormvariate(0.0, 0.05)
            heapq.heappush(self.heap, (self.now + seconds, self.now, assignment.worker))
        return spent

    def event(self) -> float:
        self.now, start, worker = heapq.heappop(self.heap)
        begin = time.process_time()
        self.hopper.finish(worker, self.now, self.now - start)
        spent = time.process_time() - begin + self.assign()
        begin = time.process_time()
        if worker in self.hopper.running():
            self.hopper.likely_next(worker)
        return spent + time.process_time() - begin

    def leave_and_return(self) -> float:
        _, _, worker = heapq.heappop(self.heap)
        held = self.hopper.workers()[worker]
        begin = time.process_time()
        self.hopper.remove_worker(worker)
        self.assign()
        self.hopper.add_worker(worker, *held)
        self.assign()
        return time.process_time() - begin


def allocation() -> str:
    import numpy as np

    from regatta.plan.fleet.nodes import Nodes
    from regatta.plan.fleet.policies import FleetView
    from regatta.plan.fleet.simulate import malleable_bound
    from regatta.plan.papers.fleet_suite import calibrated, make_policy

    problem, nodes = calibrated(0, MODELS), Nodes.uniform(WORKERS, EACH)
    bound = malleable_bound(problem.models, nodes, problem.truth)
    view = FleetView(nodes, problem.models, problem.restart, epochs=np.zeros(MODELS), ready=np.zeros(MODELS))
    view.waiting, view.free = dict.fromkeys(range(MODELS)), set(range(WORKERS))
    started = make_policy("water").decide(view)
    return f"{len(started)} started, bound {bound:,.0f} s"


def voyage() -> str:
    from regatta.plan.fleet.nodes import Nodes
    from regatta.plan.papers.fleet_suite import calibrated

    problem, nodes = calibrated(0, MODELS), Nodes.uniform(WORKERS, EACH)
    found = problem.run("water", nodes)
    return f"{found.makespan / problem.bound(nodes):.4f} of the bound"


HOPPERS = (hopper, hopper_evaluates, hopper_equal, hopper_replicas)
PLANS = {p.__name__: p for p in (choose_all_different, choose_kinds, *HOPPERS, allocation, voyage)}


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
        if said.startswith("first"):
            bars.append(Bar(f"{name}: an event, CPU ms", float(said.split()[4]), 5.0))
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
