"""Profiling of packs: are several models side by side faster than one after another?

A few models of each build are tried together on every worker, where a pack may gain something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from regatta.configuration import Scalar
from regatta.engine.messages import ModelProfile, PackProfile, Task, TaskDone, TaskFailed, WorkerLost, WorkerReady
from regatta.engine.profiling.cache import CachedPackRate
from regatta.engine.profiling.models import NO_HOOKS, Configs, ModelProfiles, ProfilingHooks, ProfilingRequest
from regatta.engine.workers.base import WorkerPool
from regatta.journal.journal_file import Record
from regatta.plan.schedule.model_kinds import LabelsByValues
from regatta.plan.strategy.form_packs import ANY_CUDA_BUILD, PackRate

MEMBERS = (8, 4, 2)  # sizes to try where a worker's share of the models would cost too much
MAX_MEMBERS = 32  # to try at once
STEPS = 96  # that trying takes of each member, about
MAX_COST_SHARE = 0.1  # of the predicted work that trying may cost; where packs pay, it is soon won back
MAX_STEP_SECONDS = 3e-3  # a longer step keeps a processor busy by itself


def builds_of(models: ModelProfiles, configs: Configs) -> LabelsByValues:
    builds = LabelsByValues()
    for config, profile in models.profiles.items():
        if config in configs:
            builds.learn(config, configs[config], profile.build)
    return builds


def rates_from_journal(history: Sequence[Record]) -> dict[str, PackRate]:
    """The pack rates by build that a journal holds."""
    builds: dict[str, list[Record]] = {}
    for line in history:
        if line["event"] == "packs":
            builds.setdefault(line["build"], []).append(line)
    rates = {}
    for build, lines in builds.items():
        gain, fixed = (median(line.get(name, 0.0) for line in lines) for name in ("gain", "fixed"))
        rates[build] = PackRate(lines[0]["members"], gain, lines[0]["reason"], fixed)
    return rates


def profile_packs(
    pool: WorkerPool, request: ProfilingRequest, models: ModelProfiles, hooks: ProfilingHooks = NO_HOOKS
) -> dict[str, PackRate]:
    """Try packs of the builds that may gain by it and are not in the cache. The pool's workers must be idle."""
    train = request.dataset.holders(pool.workers)[0]
    rates, untried = _find_untried(request, models, len(pool.workers))
    measured: dict[str, CachedPackRate] = {}
    for build, members in untried.items():
        workers = [name for name in models.ready if train.get(name)]  # all at once, as in the run
        for worker in workers:
            partition = train[worker][0]
            first, *others = (Task("pilot", member, request.configs[member], 0, partition) for member in members)
            pool.submit(worker, replace(first, packed_with=tuple(others)))
            hooks.on_begin(worker)
        profiles = _await_profiles(pool, workers, models, hooks)
        if profiles:
            gain, fixed = median(each.gain for each in profiles), median(each.fixed for each in profiles)
            rates[build] = PackRate(profiles[0].members, gain, profiles[0].reason, fixed)
            measured[build] = CachedPackRate(rates[build], tuple(members))
    if request.cache is not None:
        request.cache.add(packs=measured)
    return rates


def cached_pack_rates(workers: int, request: ProfilingRequest, models: ModelProfiles) -> dict[str, PackRate] | None:
    """The pack rates in the cache; None where some pack would have to be tried."""
    rates, untried = _find_untried(request, models, workers)
    return None if untried else rates


def _find_untried(
    request: ProfilingRequest, models: ModelProfiles, workers: int
) -> tuple[dict[str, PackRate], dict[str, list[str]]]:
    """The rates in the cache by build, and the configurations of other builds to try together."""
    builds = builds_of(models, request.configs)
    alike: dict[str, list[str]] = {}
    for config, values in request.configs.items():
        if config not in models.failed:
            alike.setdefault(builds.label_of(config, values), []).append(config)
    rates, untried = dict[str, PackRate](), dict[str, list[str]]()
    for build, members in alike.items():
        if not build or len(members) < 2:
            continue
        profiles = [models.profiles[member] for member in members if member in models.profiles]
        tried = members[: _size_to_try(request, members, profiles, workers)]
        rate = None if request.cache is None else request.cache.rate(build, tried)
        if rate is not None:
            rates[build] = rate
        elif tried:
            untried[build] = tried
    return rates, untried


def _size_to_try(
    request: ProfilingRequest, members: Sequence[str], profiles: Sequence[ModelProfile], workers: int
) -> int:
    """How many members to try together; 0 where there is nothing to gain."""
    if not profiles:
        return 0
    partitions = request.dataset.train
    rows = sum(part.rows or profiles[0].train_rows for part in partitions)
    per_row = sum(profile.train_seconds_per_row for profile in profiles) / len(profiles)
    fixed = sum(profile.fixed_seconds for profile in profiles) / len(profiles)
    step = _step_seconds(per_row, request.configs[members[0]])
    if step > MAX_STEP_SECONDS and profiles[0].build != ANY_CUDA_BUILD:
        return 0
    predicted = len(members) * request.goal.epochs * (per_row * rows + fixed * len(partitions))
    cost_of_member = STEPS * step + 2 * fixed
    per_worker = min(-(-len(members) // workers), MAX_MEMBERS)
    sizes = [size for size in (per_worker, *MEMBERS) if 2 <= size <= max(per_worker, 2)]
    return next((size for size in sizes if size * cost_of_member <= MAX_COST_SHARE * predicted), 0)


def _step_seconds(seconds_per_row: float, values: Mapping[str, Scalar]) -> float:
    size = values.get("batch_size", 1)
    return seconds_per_row * (size if isinstance(size, int) else 1)


def has_long_steps(profile: ModelProfile, values: Mapping[str, Scalar]) -> bool:
    """Whether a step keeps a processor busy by itself, so that packs are not tried."""
    step = _step_seconds(profile.train_seconds_per_row, values)
    return step > MAX_STEP_SECONDS and profile.build != ANY_CUDA_BUILD


def _await_profiles(
    pool: WorkerPool, workers: Sequence[str], models: ModelProfiles, hooks: ProfilingHooks
) -> list[PackProfile]:
    """Wait until each worker has finished its task or is gone, and return the profiles."""
    waiting, found = set(workers), list[PackProfile]()
    while waiting:
        for event in pool.events():
            hooks.on_event(event)
            if isinstance(event, WorkerReady):
                models.on_worker_up(event)
            elif isinstance(event, WorkerLost):
                models.on_worker_down(event)
            if isinstance(event, TaskDone | TaskFailed | WorkerLost):
                waiting.discard(event.worker)
            if isinstance(event, TaskDone) and event.pack_profile is not None:
                found.append(event.pack_profile)
        hooks.between()
    return found
