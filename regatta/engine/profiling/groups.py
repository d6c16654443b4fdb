"""Profiling of groups: what does it cost a group of workers to exchange gradients? One model of each build is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from regatta.engine.messages import GroupProfile, Task, TaskDone, TaskFailed, WorkerLost
from regatta.engine.profiling.cache import ProfileCache
from regatta.engine.profiling.models import NO_HOOKS, Configs, ModelProfiles, ProfilingHooks, ProfilingRequest
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
    candidates = _slowest_of_builds(request.configs, models)
    found = _in_cache(candidates, request.cache)
    if set(found) == set(candidates):
        return found
    groups = GroupPool(pool, WIDTH, rendezvous)
    ready = groups.adopt(models.ready)
    train, measured = request.dataset.holders(groups.workers)[0], dict[str, float]()
    name = next((event.worker for event in ready if train.get(event.worker)), None)
    for build, config in candidates.items():
        if build in found:
            continue
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
    candidates = _slowest_of_builds(request.configs, models)
    found = _in_cache(candidates, request.cache)
    return found if set(found) == set(candidates) else None


def _in_cache(builds: Iterable[str], cache: ProfileCache | None) -> dict[str, Communication]:
    ratios = {} if cache is None else cache.ratios
    return {build: Communication(ratios[build]) for build in builds if build in ratios}


def _slowest_of_builds(configs: Configs, models: ModelProfiles) -> Mapping[str, str]:
    """The slowest profiled configuration of each build, the slowest builds first."""
    profiles = {config: profile for config, profile in models.profiles.items() if config in configs}
    builds: dict[str, str] = {}
    for config in sorted(profiles, key=lambda config: -profiles[config].train_seconds_per_row):
        if profiles[config].build:
            builds.setdefault(profiles[config].build, config)
    return dict(list(builds.items())[:MAX_BUILDS])


def _await_answer(groups: GroupPool, name: str, between: Callable[[], None]) -> TaskDone | TaskFailed | WorkerLost:
    while True:
        events = groups.events()
        between()
        for event in events:
            if isinstance(event, TaskDone | TaskFailed | WorkerLost) and event.worker == name:
                return event
