"""Before a run: are several models side by side faster than one after another? Tried with a few of each build."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from regatta.configuration import Scalar
from regatta.data import Dataset
from regatta.engine.messages import (
    Event,
    ModelProfile,
    PackProfile,
    Task,
    TaskDone,
    TaskFailed,
    WorkerLost,
    WorkerReady,
)
from regatta.engine.profiling.cache import CachedPackRate, ProfileCache
from regatta.engine.profiling.models import Configs, ModelProfiles
from regatta.engine.workers.base import WorkerPool
from regatta.journal.journal import Record
from regatta.plan.strategy.form_packs import ANY_CUDA_BUILD, Builds, PackRate

MEMBERS = (8, 4, 2)  # that are tried side by side: as many as the work to come is worth
MOST_MEMBERS = 32  # as many as a worker would get of them, up to so many, rather than any of these
STEPS = 96  # that trying takes of each, about
SHARE = 0.1  # of the work that is foreseen may go into trying, which counts little where it pays
TINY = 3e-3  # seconds: on a processor, a longer step keeps it busy by itself


def builds_of(outcome: ModelProfiles, configs: Configs) -> Builds:
    """What the pilots found out of each configuration's build."""
    builds = Builds()
    for config, result in outcome.results.items():
        if config in configs:
            builds.learn(config, configs[config], result.build)
    return builds


def rates_from_journal(history: Sequence[Record]) -> dict[str, PackRate]:
    """What a journal says of packs that were tried."""
    builds: dict[str, list[Record]] = {}
    for line in history:
        if line["event"] == "packs":
            builds.setdefault(line["build"], []).append(line)
    return {build: _recalled(lines) for build, lines in builds.items()}


def _recalled(lines: Sequence[Record]) -> PackRate:
    gain, fixed = (median(line.get(name, 0.0) for line in lines) for name in ("gain", "fixed"))
    return PackRate(lines[0]["members"], gain, lines[0]["reason"], fixed)


def profile_packs(
    pool: WorkerPool,
    dataset: Dataset,
    configs: Configs,
    epochs: int,
    outcome: ModelProfiles,
    heard: Callable[[Event], None] = lambda event: None,
    begun: Callable[[str], None] = lambda worker: None,
    between: Callable[[], None] = lambda: None,
    profiles: ProfileCache | None = None,
) -> dict[str, PackRate]:
    """Try packs of those builds that may gain by it, and of which `profiles` do not know; the workers are idle."""
    train = dataset.holders(pool.workers)[0]
    wanted = _wanted(dataset, configs, epochs, outcome, len(pool.workers))
    rates = _cached(wanted, profiles)
    news: dict[str, CachedPackRate] = {}
    for build, members in wanted.items():
        if not members or build in rates:
            continue
        workers = [name for name in outcome.ready if train.get(name)]  # all at once, as it will be in the run
        for worker in workers:
            first, *others = (Task("pilot", member, configs[member], 0, train[worker][0]) for member in members)
            pool.submit(worker, replace(first, packed_with=tuple(others)))
            begun(worker)
        found = _await(pool, workers, outcome, heard, between)
        if found:
            gain, fixed = median(each.gain for each in found), median(each.fixed for each in found)
            rates[build] = PackRate(found[0].members, gain, found[0].reason, fixed)
            news[build] = CachedPackRate(rates[build], tuple(members))
    if profiles is not None:
        profiles.keep(packs=news)
    return rates


def cached_rates(
    workers: int, dataset: Dataset, configs: Configs, epochs: int, outcome: ModelProfiles, profiles: ProfileCache
) -> dict[str, PackRate] | None:
    """What `profiles` know of packs, if none would be tried besides."""
    wanted = _wanted(dataset, configs, epochs, outcome, workers)
    rates = _cached(wanted, profiles)
    return None if any(members and build not in rates for build, members in wanted.items()) else rates


def _cached(wanted: Mapping[str, Sequence[str]], profiles: ProfileCache | None) -> dict[str, PackRate]:
    if profiles is None:
        return {}
    found = {build: profiles.rate(build, members) for build, members in wanted.items()}
    return {build: rate for build, rate in found.items() if rate is not None}


def _wanted(
    dataset: Dataset, configs: Configs, epochs: int, outcome: ModelProfiles, workers: int
) -> dict[str, list[str]]:
    """By build, the configurations to try side by side: none where there is nothing to be gained."""
    builds, alike = builds_of(outcome, configs), dict[str, list[str]]()
    for config, values in configs.items():
        if config not in outcome.failed:
            alike.setdefault(builds.of(config, values), []).append(config)
    found = {}
    for build, members in alike.items():
        results = [outcome.results[member] for member in members if member in outcome.results]
        if build and len(members) > 1:
            found[build] = members[: _worth_trying(members, results, configs, dataset, epochs, workers)]
    return found


def _worth_trying(
    members: Sequence[str],
    results: Sequence[ModelProfile],
    configs: Configs,
    dataset: Dataset,
    epochs: int,
    workers: int,
) -> int:
    """How many to try side by side; 0 where there is nothing to be gained."""
    if len(members) < 2 or not results:
        return 0
    rows = sum(part.rows or results[0].train_rows for part in dataset.train)
    per_row = sum(result.train_seconds_per_row for result in results) / len(results)
    fixed = sum(result.fixed_seconds for result in results) / len(results)
    step = per_row * _batch_size(configs[members[0]])
    if step > TINY and results[0].build != ANY_CUDA_BUILD:
        return 0
    foreseen = len(members) * epochs * (per_row * rows + fixed * len(dataset.train))
    each = STEPS * step + 2 * fixed
    share = min(-(-len(members) // workers), MOST_MEMBERS)  # of a worker
    sizes = [size for size in (share, *MEMBERS) if 2 <= size <= max(share, 2)]
    return next((size for size in sizes if size * each <= SHARE * foreseen), 0)


def _batch_size(values: Mapping[str, Scalar]) -> int:
    size = values.get("batch_size", 1)
    return size if isinstance(size, int) else 1


def _await(
    pool: WorkerPool,
    workers: Sequence[str],
    outcome: ModelProfiles,
    heard: Callable[[Event], None],
    between: Callable[[], None],
) -> list[PackProfile]:
    """What the workers find, until each is done with its task, or gone."""
    waits, found = set(workers), list[PackProfile]()
    while waits:
        for event in pool.events():
            heard(event)
            if isinstance(event, WorkerReady):
                outcome.on_worker_up(event)
            elif isinstance(event, WorkerLost):
                outcome.on_worker_down(event)
            if isinstance(event, TaskDone | TaskFailed | WorkerLost):
                waits.discard(event.worker)
            if isinstance(event, TaskDone) and event.pack_profile is not None:
                found.append(event.pack_profile)
        between()
    return found
