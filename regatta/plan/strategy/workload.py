"""Turns the profiles of a sweep into the workload of a plan: models that are alike form one kind. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from regatta.plan.schedule.model_kinds import split_by_time
from regatta.plan.strategy.costs import DataCosts, KindTeam, ModelKind, Strategy, Workload
from regatta.plan.strategy.form_packs import MAX_PACK_MEMBERS, MIN_PACK_GAIN, PackRate
from regatta.plan.strategy.groups_or_hops import Communication
from regatta.plan.strategy.plan_tree import RejectedStrategy

MAX_NAMED_VALUES = 3  # in the name of a kind


@dataclass(frozen=True)
class ModelCosts:
    """A configuration on one worker: seconds of an epoch over all data, of its evaluation, and besides each unit."""

    train: float
    evaluate: float = 0.0
    fixed: float = 0.0
    prepare: float = 0.0
    state_bytes: float = 0.0
    peak_bytes: float = 0.0
    fetch: float = 0.0  # seconds of `fixed`, and of each evaluation, to fetch a state


@dataclass(frozen=True)
class PlannedModel:
    """What is wanted of a configuration, and its costs: measured, or estimated where it was not profiled."""

    epochs: int
    values: Mapping[str, object]
    costs: ModelCosts
    build: str = ""  # models of one build may be trained as a pack
    profiled: bool = True


@dataclass(frozen=True)
class Team:
    """Workers in groups of one width, and the names of the models that only they train."""

    width: int
    groups: int
    models: tuple[str, ...]


def team_index(teams: Sequence[Team], model: str) -> int:
    """The number of a model's team. A model that came later goes to the last team, which is the narrowest."""
    return next((index for index, team in enumerate(teams) if model in team.models), len(teams) - 1)


@dataclass(frozen=True)
class SweepProfile:
    """All that a plan is made of, except the workers.

    `communication` is the cost of groups by build; "" stands for all models that have no build.
    """

    models: Mapping[str, PlannedModel]
    rates: Mapping[str, PackRate] = field(default_factory=dict)
    communication: Mapping[str, Communication] = field(default_factory=dict)
    packs_forced: bool = False  # then packs may be slower than single models
    largest_packs: Mapping[str, int] | None = None  # by build, where packs can only become smaller
    sharable: bool = True
    long_steps: bool = False  # a step of any model keeps a processor busy by itself, so no packs were tried

    def known(self) -> bool:
        """Whether any model was profiled."""
        return any(model.profiled for model in self.models.values())

    def work(self) -> Workload:
        alike = self.alike()
        names = kind_names([[self.models[name].values for name in members] for members in alike])
        kinds = [self._kind(name, members) for name, members in zip(names, alike, strict=True)]
        known = self._costs(self.models)
        if not any(costs.prepare for costs in known):
            return Workload(tuple(kinds))
        prepare, train = fmean(costs.prepare for costs in known), fmean(costs.train for costs in known)
        return Workload(tuple(kinds), replace(DataCosts.shared(prepare, train), sharable=self.sharable))

    def alike(self) -> list[list[str]]:
        """The names of the models of each kind: of one build, with equally many epochs, and about equally slow."""
        kinds: dict[Hashable, list[str]] = {}
        for name, model in self.models.items():
            single = name if model.profiled else ""
            kinds.setdefault((model.build or single, bool(model.build), model.epochs), []).append(name)
        return [part for members in kinds.values() for part in self._split_by_time(members)]

    def _split_by_time(self, members: Sequence[str]) -> list[list[str]]:
        """The members in several lists, where there is a gap between their times; packs go by build alone."""
        if self._packed(self.models[members[0]].build, len(members)):
            return [list(members)]
        parts = [set(part) for part in split_by_time({name: self.models[name].costs.train for name in members})]
        return [[name for name in members if name in part] for part in parts]

    def pack_sizes(self, strategy: Strategy) -> dict[str, int]:
        """The largest size of a pack, by build."""
        sizes: dict[str, int] = {}
        for index, members in enumerate(self.alike()):
            build = self.models[members[0]].build
            sizes[build] = max(sizes.get(build, 1), strategy.pack_size(index))
        return sizes

    def teams(self, strategy: Strategy) -> tuple[Team, ...]:
        """The teams of a strategy, with the names of their models."""
        alike = self.alike()
        return tuple(
            Team(team.width, team.groups, tuple(name for kind in team.kinds for name in alike[kind]))
            for team in strategy.teams
        )

    def strategy(self, packs: Mapping[str, int], width: int, share: bool, teams: Sequence[Team] = ()) -> Strategy:
        """The strategy with these packs by build. A kind may have fewer models than its packs could hold."""
        alike = self.alike()
        sizes = [min(packs.get(self.models[members[0]].build, 1), len(members)) for members in alike]
        team_of_kind = [team_index(teams, members[0]) for members in alike] if teams else []
        kind_teams = tuple(
            KindTeam(team.width, team.groups, tuple(kind for kind, own in enumerate(team_of_kind) if own == index))
            for index, team in enumerate(teams)
        )
        return Strategy(tuple(sizes) if any(size > 1 for size in sizes) else (), width, share, kind_teams)

    def why_not_packed(self) -> RejectedStrategy | None:
        """Why no packs are offered; None where some are, or where no two models could be packed."""
        if any(kind.packed for kind in self.work().kinds):
            return None
        if self.rates:
            best = max(self.rates.values(), key=lambda rate: rate.gain)
            faster = "no faster than" if best.gain < 1.05 else f"{best.gain:.1f} times as fast as"
            return RejectedStrategy(
                f"packs of {best.members}", f"{best.members} models together are {faster} one after another"
            )
        several = any(len(members) > 1 and self.models[members[0]].build for members in self.alike())
        why = "one model keeps its processor busy" if self.long_steps else "too little to train for a trial to pay"
        return RejectedStrategy("packs", f"not tried: {why}") if several else None

    def why_not_shared(self) -> RejectedStrategy | None:
        """Why sharing is not offered; None where it is."""
        why = "what input_fn returns is not made of arrays of numbers"
        return None if self.sharable else RejectedStrategy("share", why)

    def _kind(self, name: str, members: Sequence[str]) -> ModelKind:
        build = self.models[members[0]].build
        known = self._costs(members)
        return ModelKind(
            name,
            len(members),
            self.models[members[0]].epochs,
            seconds=max(fmean(costs.train for costs in known), 1e-9),
            evaluate=fmean(costs.evaluate for costs in known),
            state_bytes=fmean(costs.state_bytes for costs in known),
            peak_bytes=max(costs.peak_bytes for costs in known),
            packed=self._packed(build, len(members)),
            communication=self.communication.get(build),
            fixed=fmean(costs.fixed for costs in known),
            fetch=fmean(costs.fetch for costs in known),
            pack_fixed=self.rates[build].fixed if build in self.rates else 0.0,
        )

    def _costs(self, names: Iterable[str]) -> list[ModelCosts]:
        return [self.models[name].costs for name in names]

    def _packed(self, build: str, models: int) -> dict[int, float]:
        """Seconds of the largest pack over those of one model. The curve is linear, so its end is enough."""
        most = min(models, MAX_PACK_MEMBERS if self.largest_packs is None else self.largest_packs.get(build, 1))
        if not build or most < 2 or (build not in self.rates and not self.packs_forced):
            return {}
        gain = self.rates.get(build, PackRate(1, 1.0)).gain_of(most)
        return {most: most / gain} if gain >= MIN_PACK_GAIN or self.packs_forced else {}


def kind_names(kinds: Sequence[Sequence[Mapping[str, object]]]) -> list[str]:
    """A name for each kind, from the values that its models have in common and not all kinds have."""
    common = [_common_values(members) for members in kinds]
    distinct: dict[str, set[str]] = {}
    for values in common:
        for key, value in values.items():
            distinct.setdefault(key, set()).add(repr(value))
    telling = [key for key, found in distinct.items() if len(found) > 1 or any(key not in values for values in common)]
    names = []
    for number, values in enumerate(common, start=1):
        shown = [f"{key}={values[key]}" for key in telling if key in values][:MAX_NAMED_VALUES]
        kind = "of one kind" if len(kinds) == 1 else f"of kind {number}"
        names.append(f"with {', '.join(shown)}" if shown else kind)
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, start=1)]


def _common_values(members: Sequence[Mapping[str, object]]) -> dict[str, object]:
    first, *others = members
    return {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}
