"""Population-based training: every few epochs, mutated copies of the better half replace the worse half.

After Jaderberg et al., Population Based Training of Neural Networks (2017), in generations, as in the experiment in the
appendix of the Cerebro paper. A child is a configuration of its own that starts from its parent's state; its epochs
count from its creation. Members may get equal values and must still differ, so each has its number among its values, as
`member`: the first generation counts from 0, then children in the order of their creation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Any

from regatta.configuration import Scalar, config_id
from regatta.errors import UsageError, nearest
from regatta.format import brief
from regatta.search.base import Action, Goal, Rank, Report, Train, check_count, check_seed
from regatta.search.domain import Domain, Where, make_domain
from regatta.search.mutations import Mutation, check_mutation
from regatta.seeds import derive_seed

MEMBER = "member"
MAX_MUTATION_TRIES = 100  # mutations that `where` may reject before the child keeps its parent's values


@dataclass
class _PbtMember:
    values: dict[str, Scalar]  # without the number
    number: int
    epochs: int
    rank: Rank | None = None
    failed: bool = False

    @property
    def config(self) -> dict[str, Scalar]:
        return {**self.values, MEMBER: self.number}

    @property
    def id(self) -> str:
        return config_id(self.config)


class Pbt:
    def __init__(
        self, population: int, every: int, mutate: Mapping[str, Mutation], seed: int | None, domain: Domain
    ) -> None:
        self._population, self._every, self._mutate = population, every, dict(mutate)
        self._seed, self._domain = seed, domain

    def describe(self) -> dict[str, Any]:
        rules = {name: rule.describe() for name, rule in self._mutate.items()}
        parameters = {"population": self._population, "every": self._every, "mutate": rules, "seed": self._seed}
        return {"kind": "pbt", **parameters, **self._domain.describe()}

    def start(self, goal: Goal) -> list[Action]:
        self._goal = goal
        self._run_seed = goal.seed if self._seed is None else self._seed
        self._age = min(self._every, goal.epochs)  # epochs of a lineage at the end of this generation
        # The values of the first generation are all different, if the space has enough.
        count = self._domain.count()
        different = self._population if count is None else min(self._population, max(1, count))
        random = Random(derive_seed(self._run_seed, "search", "pbt"))
        drawn = self._domain.draw(different, random, f"pbt(population={self._population})")
        values = islice(cycle(drawn), self._population)
        members = [_PbtMember(dict(one), number, self._age) for number, one in enumerate(values)]
        self._members = {member.id: member for member in members}
        self._born = len(members)
        return [Train(member.config, member.epochs) for member in members]

    def hear(self, report: Report) -> list[Action]:
        member = self._members.get(report.config)
        if member is None:
            return []
        if report.failed:
            member.failed = True
        elif report.epoch >= member.epochs:
            member.rank = self._goal.rank(report.metrics)
        waits = any(member.rank is None and not member.failed for member in self._members.values())
        return [] if waits else self._next_generation()

    def _next_generation(self) -> list[Action]:
        # At most half of the population, rounded up; members without a metric only if no member has one.
        alive = [(m.rank, m.number, m) for m in self._members.values() if m.rank is not None and not m.failed]
        with_number = [entry for entry in alive if not entry[0][0]]
        best_first = sorted(with_number or alive)
        kept = [member for _, _, member in best_first[: self._population - self._population // 2]]
        epochs = min(self._every, self._goal.epochs - self._age)
        if not kept or not epochs:
            return []
        self._age += epochs
        children = [self._child(kept, epochs) for _ in range(self._population - len(kept))]
        for member in kept:
            member.epochs, member.rank = member.epochs + epochs, None
        self._members = {member.id: member for member in (*kept, *(child for child, _ in children))}
        # Children come first: they start from their parents' states before the parents continue.
        born = [Train(child.config, epochs, parent=parent.id) for child, parent in children]
        return [*born, *(Train(member.config, member.epochs) for member in kept)]

    def _child(self, parents: list[_PbtMember], epochs: int) -> tuple[_PbtMember, _PbtMember]:
        random = Random(derive_seed(self._run_seed, "search", "pbt", self._born))
        parent = parents[int(random.random() * len(parents))]
        values, axes = parent.values, self._domain.axes
        child = _PbtMember(dict(values), self._born, epochs)
        self._born += 1
        for _ in range(MAX_MUTATION_TRIES):
            new = {name: rule.mutate(values[name], axes[name], random) for name, rule in self._mutate.items()}
            if self._domain.allows({**values, **new}):
                child.values = {**values, **new}
                break
        return child, parent


def pbt(
    space: Mapping[str, object] | None = None,
    *,
    population: int,
    every: int,
    mutate: Mapping[str, Mutation],
    seed: int | None = None,
    where: Where | None = None,
    **axes: object,
) -> Pbt:
    """A population drawn from the space. After each `every` epochs, children of the better half replace the worse half.

    A child starts from its parent's state, with the values that `mutate` names changed by `step`, `factor` or
    `resample`. Parents are drawn from the better half. The search ends when a lineage has the sweep's epochs. Members
    that failed or have no metric are replaced as well. Configurations get the value `member`.
    """
    check_count("pbt", "population", population, least=2)
    check_count("pbt", "every", every)
    check_seed("pbt", seed)
    domain = make_domain("pbt", space, axes, where)
    if MEMBER in domain.axes:
        raise UsageError(f"pbt gives its members a value {MEMBER!r}; call the axis of that name something else.")
    if not isinstance(mutate, Mapping) or not mutate:
        raise UsageError(
            f"pbt(mutate={brief(mutate)}): say how at least one value changes from parent to child.",
            hint="For example: mutate={'lr': search.factor(0.8, 1.25)}.",
        )
    for name, rule in mutate.items():
        if name not in domain.axes:
            raise UsageError(
                f"pbt mutates {name!r}, which is not an axis of the space.", candidates=nearest(str(name), domain.axes)
            )
        check_mutation(name, rule, domain.axes[name])
    return Pbt(population, every, mutate, seed, domain)
