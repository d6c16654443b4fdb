"""What was measured of a sweep, as the work that a plan is made for: models that are alike become one kind. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from regatta.plan.strategy.costs import (
    DataCosts,
    KindTeam,
    ModelKind,
    Strategy,
    Workload,
)
from regatta.plan.strategy.form_packs import MAX_PACK_MEMBERS, MIN_PACK_GAIN, PackRate
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.plan.strategy.plan_tree import RejectedStrategy

GAP = 2.0  # models of one build that take so many times as long are of another kind
NAMED = 3  # values that tell a kind from the others, at most


@dataclass(frozen=True)
class ModelCosts:
    """A configuration on one worker: seconds of an epoch over all data, of its evaluation, and beside each unit."""

    train: float
    evaluate: float = 0.0
    fixed: float = 0.0
    prepare: float = 0.0
    state_bytes: float = 0.0
    peak_bytes: float = 0.0
    build: str = ""  # models of one build may be trained as a pack
    fetch: float = 0.0  # of `fixed`, and of each evaluation, what it takes to bring a state


@dataclass(frozen=True)
class ProfiledModel:
    """What is wanted of a configuration, and what is known of it; of one that was not tried, only its build."""

    epochs: int
    values: Mapping[str, object]
    measured: ModelCosts | None = None
    build: str = ""


@dataclass(frozen=True)
class Team:
    """A team of workers in groups of one width, and the names of the models that only they train."""

    width: int
    groups: int
    models: tuple[str, ...]


def team_index(teams: Sequence[Team], model: str) -> int:
    """The number of a model's team; one that nobody had heard of goes to the last, the narrowest."""
    return next((place for place, team in enumerate(teams) if model in team.models), len(teams) - 1)


@dataclass(frozen=True)
class SweepProfile:
    """All that a plan is made of, but for the workers.

    `links` say by build what exchanging gradients costs; under "" stands what holds for all that have no build.
    """

    models: Mapping[str, ProfiledModel]
    rates: Mapping[str, PackRate] = field(default_factory=dict)
    links: Mapping[str, Communication] = field(default_factory=dict)
    packs_forced: bool = False  # then packs may be slower than one by one
    largest: Mapping[str, int] | None = None  # packs by build, where they can only become smaller
    sharable: bool = True

    def known(self) -> bool:
        """Whether there is anything to make a plan of."""
        return any(model.measured is not None for model in self.models.values())

    def work(self) -> Workload:
        alike = self.alike()
        names = kind_names([[self.models[name].values for name in members] for members in alike])
        kinds = [self._kind(name, members) for name, members in zip(names, alike, strict=True)]
        known = [model.measured for model in self.models.values() if model.measured is not None]
        if not any(measured.prepare for measured in known):
            return Workload(tuple(kinds))
        prepare, train = fmean(each.prepare for each in known), fmean(each.train for each in known)
        return Workload(tuple(kinds), replace(DataCosts.shared(prepare, train), sharable=self.sharable))

    def alike(self) -> list[list[str]]:
        """The names of models, those together that make one kind: of one build, as long a way to go, and about as slow.

        A build may be much slower for some values than for others; those that were not tried are with the most.
        """
        kinds: dict[Hashable, list[str]] = {}
        for name, model in self.models.items():
            alone = name if model.measured is not None else ""
            kinds.setdefault((model.build or alone, bool(model.build), model.epochs), []).append(name)
        return [part for members in kinds.values() for part in self._told_apart(members)]

    def _told_apart(self, members: Sequence[str]) -> list[list[str]]:
        """By what they take; but whoever goes into packs goes by build alone."""
        packed = self._packed(self.models[members[0]].build, len(members))
        return [list(members)] if packed else self._about_as_slow(members)

    def _about_as_slow(self, members: Sequence[str]) -> list[list[str]]:
        """The same members in several lists where there is a gap between what they take."""
        seconds = {name: measured.train for name in members if (measured := self.models[name].measured) is not None}
        parts: list[list[str]] = []
        for name in sorted(seconds, key=lambda name: seconds[name]):
            if not parts or seconds[name] > GAP * seconds[parts[-1][-1]]:
                parts.append([])
            parts[-1].append(name)
        if len(parts) < 2:
            return [list(members)]
        most = max(parts, key=len)
        untried = [name for name in members if name not in seconds]
        wanted = [set([*part, *untried] if part is most else part) for part in parts]
        return [[name for name in members if name in part] for part in wanted]

    def pack_sizes(self, choice: Strategy) -> dict[str, int]:
        """The most members of a pack, by build."""
        sizes: dict[str, int] = {}
        for index, members in enumerate(self.alike()):
            build = self.models[members[0]].build
            sizes[build] = max(sizes.get(build, 1), choice.size(index))
        return sizes

    def teams(self, choice: Strategy) -> tuple[Team, ...]:
        """The teams of a choice, with the names of their models."""
        alike = self.alike()
        return tuple(
            Team(team.width, team.groups, tuple(name for kind in team.kinds for name in alike[kind]))
            for team in choice.teams
        )

    def choice(self, packs: Mapping[str, int], width: int, share: bool, teams: Sequence[Team] = ()) -> Strategy:
        """The choice that comes to such packs by build, in which a kind may have fewer models than its packs could."""
        alike = self.alike()
        sizes = [min(packs.get(self.models[members[0]].build, 1), len(members)) for members in alike]
        of_kinds = [team_index(teams, members[0]) for members in alike] if teams else []
        found = tuple(
            KindTeam(squad.width, squad.groups, tuple(kind for kind, of in enumerate(of_kinds) if of == place))
            for place, squad in enumerate(teams)
        )
        return Strategy(tuple(sizes) if any(size > 1 for size in sizes) else (), width, share, found)

    def why_not_packed(self) -> RejectedStrategy | None:
        """What is to be said of packs where none are offered; None where some are, or none could be."""
        kinds = self.work().kinds
        if any(kind.packed for kind in kinds):
            return None
        if self.rates:
            best = max(self.rates.values(), key=lambda rate: rate.gain)
            told = f"{best.members} models side by side are {best.gain:.1f} times as fast as one after another"
            return RejectedStrategy(f"packs of {best.members}", told)
        several = any(len(members) > 1 and self.models[members[0]].build for members in self.alike())
        untried = "not tried: too little to train, or each model keeps its device busy by itself"
        return RejectedStrategy("packs", untried) if several else None

    def why_not_shared(self) -> RejectedStrategy | None:
        """What is to be said of sharing where it is not offered, and could pay."""
        told = "not possible: what input_fn returns is not made of arrays of numbers"
        return None if self.sharable else RejectedStrategy("share", told)

    def _kind(self, name: str, members: Sequence[str]) -> ModelKind:
        first = self.models[members[0]]
        known = self._known(members) or self._known(self._of_build(first.build)) or self._known(self.models)
        return ModelKind(
            name, len(members), first.epochs,
            seconds=max(fmean(measured.train for measured in known), 1e-9),
            evaluate=fmean(measured.evaluate for measured in known),
            state_bytes=fmean(measured.state_bytes for measured in known),
            peak_bytes=max(measured.peak_bytes for measured in known),
            packed=self._packed(first.build, len(members)),
            communication=self.links.get(first.build),
            fixed=fmean(measured.fixed for measured in known),
            fetch=fmean(measured.fetch for measured in known),
            pack_fixed=self.rates[first.build].fixed if first.build in self.rates else 0.0,
        )  # fmt: skip

    def _known(self, names: Iterable[str]) -> list[ModelCosts]:
        return [measured for name in names if (measured := self.models[name].measured) is not None]

    def _of_build(self, build: str) -> list[str]:
        return [name for name, model in self.models.items() if build and model.build == build]

    def _packed(self, build: str, models: int) -> dict[int, float]:
        """The seconds of a pack over those of one model are a straight line: its end is all that is needed."""
        most = min(models, MAX_PACK_MEMBERS if self.largest is None else self.largest.get(build, 1))
        if not build or most < 2 or (build not in self.rates and not self.packs_forced):
            return {}
        rate = self.rates.get(build, PackRate(1, 1.0))
        gain = rate.gain_of(most)
        return {most: most / gain} if gain >= MIN_PACK_GAIN or self.packs_forced else {}


def kind_names(kinds: Sequence[Sequence[Mapping[str, object]]]) -> list[str]:
    """A name for each kind, given the values of its models: those that its models share, and not all kinds do."""
    shared = [_shared(members) for members in kinds]
    spread: dict[str, set[str]] = {}
    for values in shared:
        for key, value in values.items():
            spread.setdefault(key, set()).add(repr(value))
    telling = [key for key, found in spread.items() if len(found) > 1 or any(key not in values for values in shared)]
    names = []
    for number, values in enumerate(shared, start=1):
        told = [f"{key}={values[key]}" for key in telling if key in values][:NAMED]
        kind = "of one kind" if len(kinds) == 1 else f"of kind {number}"
        names.append(f"with {', '.join(told)}" if told else kind)
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, start=1)]


def _shared(members: Sequence[Mapping[str, object]]) -> dict[str, object]:
    first, *others = members
    return {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}
