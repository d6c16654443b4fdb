"""Profiling of groups: what does it cost a group of workers to exchange gradients? One model of each build is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from regatta.engine.messages import GroupProfile, Task, TaskDone, TaskFailed, WorkerLost
from regatta.engine.profiling.models import NO_HOOKS, ModelProfiles, ProfilingHooks, ProfilingRequest
from regatta.engine.workers.base import WorkerPool
from regatta.engine.workers.groups import GroupPool
from regatta.plan.strategy.groups_or_hops import Communication

WIDTH = 2  # of the groups that are tried; the cost of wider groups follows from it
MAX_BUILDS = 4  # to try, the slowest first


def profile_groups(
    pool: WorkerPool,
    request: ProfilingRequest,
    models: ModelProfiles,
    rendezvous: Path,
    hooks: ProfilingHooks = NO_HOOKS,
) -> dict[str, Communication]:
    """Communication over computation in a group of two, by build. The pool's workers must be up and idle."""
    found, untried = _find_untried(request, models)
    if not untried:
        return found
    groups = GroupPool(pool, WIDTH, rendezvous)
    ready = groups.adopt(models.ready)
    train, measured = request.dataset.holders(groups.workers)[0], dict[str, float]()
    name = next((event.worker for event in ready if train.get(event.worker)), None)
    for build, config in untried.items():
        if name is None:
            break  # no group could be formed
        groups.submit(name, Task("pilot", config, request.configs[config], 0, train[name][0]))
        hooks.on_begin(groups.first_member(name))  # ending that worker ends the group
        answer = _await_answer(groups, name, hooks.between)
        if isinstance(answer, TaskDone) and answer.profile is not None:
            alone = max(models.profiles[config].train_seconds_per_row, 1e-12)
            ratio = max(0.0, WIDTH * answer.profile.train_seconds_per_row / alone - 1)
            found[build], measured[build] = Communication(ratio), ratio
            answer = replace(answer, profile=None, group_profile=GroupProfile(build, WIDTH, ratio))
        hooks.on_event(replace(answer, worker=groups.first_member(name)))
        if isinstance(answer, WorkerLost):
            break
    models.lost |= groups.lost_workers()
    models.ready = groups.release()
    if request.cache is not None:
        request.cache.add(ratios=measured)
    return found


def cached_communication(request: ProfilingRequest, models: ModelProfiles) -> dict[str, Communication] | None:
    """The costs of groups in the cache; None where some build would have to be tried."""
    found, untried = _find_untried(request, models)
    return None if untried else found


def _find_untried(request: ProfilingRequest, models: ModelProfiles) -> tuple[dict[str, Communication], dict[str, str]]:
    """The costs in the cache by build, and the slowest configuration of each other build, the slowest builds first."""
    profiles = {config: profile for config, profile in models.profiles.items() if config in request.configs}
    builds: dict[str, str] = {}
    for config in sorted(profiles, key=lambda config: -profiles[config].train_seconds_per_row):
        if profiles[config].build:
            builds.setdefault(profiles[config].build, config)
    slowest = dict(list(builds.items())[:MAX_BUILDS])
    ratios = {} if request.cache is None else request.cache.ratios
    found = {build: Communication(ratios[build]) for build in slowest if build in ratios}
    return found, {build: config for build, config in slowest.items() if build not in found}


def _await_answer(groups: GroupPool, name: str, between: Callable[[], None]) -> TaskDone | TaskFailed | WorkerLost:
    while True:
        events = groups.events()
        between()
        for event in events:
            if isinstance(event, TaskDone | TaskFailed | WorkerLost) and event.worker == name:
                return event
