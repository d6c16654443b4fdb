"""Before a run: what does it cost a group of workers to exchange its gradients? Tried with one model of each build."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from regatta.data import Dataset
from regatta.engine.messages import (
    Event,
    GroupProfile,
    Task,
    TaskDone,
    TaskFailed,
    WorkerLost,
)
from regatta.engine.profiling.cache import ProfileCache
from regatta.engine.profiling.models import Configs
from regatta.engine.profiling.results import ProfilingResults
from regatta.engine.workers.base import WorkerPool
from regatta.engine.workers.groups import GroupPool
from regatta.plan.strategy.groups_or_hops import Communication

WIDTH = 2  # wider groups follow from it
MOST = 4  # builds that are tried, those that train longest first


def profile_groups(
    pool: WorkerPool,
    dataset: Dataset,
    configs: Configs,
    findings: ProfilingResults,
    meetings: Path,
    heard: Callable[[Event], None] = lambda event: None,
    begun: Callable[[str], None] = lambda worker: None,
    between: Callable[[], None] = lambda: None,
    profiles: ProfileCache | None = None,
) -> dict[str, Communication]:
    """Communication over computation in a group of two, by build; the pool's workers are there and idle.

    What `profiles` know is not tried again.
    """
    wanted = _longest(configs, findings)
    found = _cached(wanted, profiles)
    if set(found) == set(wanted):
        return found
    groups = GroupPool(pool, WIDTH, meetings)
    ready = groups.adopt(findings.outcome.ready)
    train, news = dataset.holders(groups.workers)[0], dict[str, float]()
    name = next((event.worker for event in ready if train.get(event.worker)), None)
    for build, config in wanted.items():
        if build in found:
            continue
        if name is None:
            break  # nobody is there
        task = Task("pilot", config, configs[config], 0, train[name][0])
        groups.submit(name, task)
        begun(groups.first_of(name))  # whoever ends that one ends the group
        answer = _await(groups, name, between)
        if isinstance(answer, TaskDone) and answer.profile is not None:
            alone = max(findings.outcome.results[config].train_seconds_per_row, 1e-12)
            ratio = max(0.0, WIDTH * answer.profile.train_seconds_per_row / alone - 1)
            found[build], news[build] = Communication(ratio), ratio
            answer = replace(answer, profile=None, group_profile=GroupProfile(build, WIDTH, ratio))
        heard(replace(answer, worker=groups.first_of(name)))
        if isinstance(answer, WorkerLost):
            break
    findings.outcome.lost |= groups.gone()
    findings.outcome.ready = groups.release()
    if profiles is not None:
        profiles.keep(ratios=news)
    return found


def cached_communication(
    configs: Configs, findings: ProfilingResults, profiles: ProfileCache
) -> dict[str, Communication] | None:
    """What `profiles` know of groups, if nothing would be tried besides."""
    wanted = _longest(configs, findings)
    found = _cached(wanted, profiles)
    return found if set(found) == set(wanted) else None


def _cached(builds: Iterable[str], profiles: ProfileCache | None) -> dict[str, Communication]:
    ratios = {} if profiles is None else profiles.ratios
    return {build: Communication(ratios[build]) for build in builds if build in ratios}


def _longest(configs: Configs, findings: ProfilingResults) -> Mapping[str, str]:
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
