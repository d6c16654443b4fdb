"""What a decision costs: 256 models on 64 workers for one epoch, 16,384 units, the state machine included.

The median of five runs, in CPU seconds of everything that the scheduler does: hearing that a unit ended, deciding and
assigning. Making the events is left out.

    python benchmarks/bench_dispatch.py
"""

from __future__ import annotations

import heapq
import statistics
import time

from hop_suites import Instance, drawn
from report import Bar, report

from regatta.plan.schedule.units import Unit

CASES = (("randomized", "xx"), ("longest", "xx"), ("longest", "hx"), ("match", "hh"), ("lrm", "xx"), ("lpt", "xx"))
MODELS, WORKERS, RUNS = 256, 64, 5


def scheduler_seconds(instance: Instance, rule: str) -> tuple[float, int, float]:
    """CPU seconds inside the scheduler, the number of units, and makespan over bound."""
    hopper, times = instance.hopper(rule), instance.known()
    heap: list[tuple[float, str, Unit]] = []
    now, spent, units = 0.0, 0.0, 0
    while True:
        begin = time.process_time_ns()
        started = hopper.assign(now)
        spent += time.process_time_ns() - begin
        units += len(started)
        for assignment in started:
            end = now + times.seconds(assignment.unit, assignment.worker)
            heapq.heappush(heap, (end, assignment.worker, assignment.unit))
        if not heap:
            return spent / 1e9, units, now / instance.bound
        now = heap[0][0]
        ended = []
        while heap and heap[0][0] <= now:
            ended.append(heapq.heappop(heap)[1])
        begin = time.process_time_ns()
        for worker in ended:
            hopper.finish(worker, now)
        spent += time.process_time_ns() - begin


def main() -> None:
    rows: list[list[object]] = []
    bars = []
    for rule, kind in CASES:
        runs = [scheduler_seconds(drawn(kind, MODELS, WORKERS, seed), rule) for seed in range(RUNS)]
        seconds = statistics.median(run[0] for run in runs)
        units = runs[0][1]
        micros = statistics.median(1e6 * run[0] / run[1] for run in runs)
        rows.append([rule, kind, units, seconds, micros, statistics.fmean(run[2] for run in runs)])
        bars += [
            Bar(f"{rule} {kind}: whole epoch, s", seconds, 2.0),
            Bar(f"{rule} {kind}: decision, us", micros, 150.0),
        ]
    columns = ["rule", "kind", "units", "seconds", "us per unit", "makespan/bound"]
    notes = {"models": MODELS, "workers": WORKERS, "runs": RUNS, "clock": "CPU seconds of the scheduler, median"}
    report("dispatch", columns, rows, bars=bars, notes=notes)


if __name__ == "__main__":
    main()
