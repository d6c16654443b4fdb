"""Before a run: what does it cost a group of workers to exchange its gradients? Tried with one model of each build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from regatta.data import Dataset
from regatta.engine.events import Event, GroupPilot, Task, TaskDone, TaskFailed, WorkerLost
from regatta.engine.findings import Findings
from regatta.engine.pilot import Configs
from regatta.engine.workers.base import WorkerPool
from regatta.engine.workers.groups import GroupPool
from regatta.plan.groups import Communication

WIDTH = 2  # wider groups follow from it
MOST = 4  # builds that are tried, those that train longest first


def run_group_pilots(
    pool: WorkerPool,
    dataset: Dataset,
    configs: Configs,
    findings: Findings,
    meetings: Path,
    heard: Callable[[Event], None] = lambda event: None,
    begun: Callable[[str], None] = lambda worker: None,
    between: Callable[[], None] = lambda: None,
) -> dict[str, Communication]:
    """Communication over computation in a group of two, by build; the pool's workers are there and idle."""
    groups = GroupPool(pool, WIDTH, meetings)
    ready = groups.adopt(findings.outcome.ready)
    train, found = dataset.holders(groups.workers)[0], dict[str, Communication]()
    name = next((event.worker for event in ready if train.get(event.worker)), None)
    for build, config in _longest(configs, findings).items():
        if name is None:
            break  # nobody is there
        task = Task("pilot", config, configs[config], 0, train[name][0])
        groups.submit(name, task)
        begun(groups.first_of(name))  # whoever ends that one ends the group
        answer = _await(groups, name, between)
        if isinstance(answer, TaskDone) and answer.pilot is not None:
            alone = max(findings.outcome.results[config].train_seconds_per_row, 1e-12)
            ratio = max(0.0, WIDTH * answer.pilot.train_seconds_per_row / alone - 1)
            found[build] = Communication(ratio)
            answer = replace(answer, pilot=None, grouped=GroupPilot(build, WIDTH, ratio))
        heard(replace(answer, worker=groups.first_of(name)))
        if isinstance(answer, WorkerLost):
            break
    findings.outcome.lost |= groups.gone()
    findings.outcome.ready = groups.release()
    return found


def _longest(configs: Configs, findings: Findings) -> Mapping[str, str]:
    """One configuration of each build that was tried, those that take longest first."""
    results = {config: result for config, result in findings.outcome.results.items() if config in configs}
    order = sorted(results, key=lambda config: -results[config].train_seconds_per_row)
    builds: dict[str, str] = {}
    for config in order:
        if results[config].build:
            builds.setdefault(results[config].build, config)
    return dict(list(builds.items())[:MOST])


def _await(groups: GroupPool, name: str, between: Callable[[], None]) -> TaskDone | TaskFailed | WorkerLost:
    while True:
        events = groups.events()
        between()
        for event in events:
            if isinstance(event, TaskDone | TaskFailed | WorkerLost) and event.worker == name:
                return event
