"""All that is found out before a run: pilots of its models, of packs where they may pay, of groups where they may."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from regatta.configuration import Scalar
from regatta.data import Dataset
from regatta.engine.profiling.models import Configs, ModelProfiles, models_from_journal
from regatta.engine.profiling.packs import builds_of, rates_from_journal
from regatta.journal.journal import Record
from regatta.plan.strategy.form_packs import Builds, PackRate
from regatta.plan.strategy.groups_or_hops import Communication


@dataclass
class ProfilingResults:
    """What pilots say: of each configuration, of packs by build, and what exchanges of a group cost by build."""

    outcome: ModelProfiles
    rates: dict[str, PackRate] = field(default_factory=dict)
    links: dict[str, Communication] = field(default_factory=dict)
    builds: Builds = field(default_factory=Builds)

    def build(self, name: str, values: Mapping[str, Scalar]) -> str:
        return self.builds.of(name, values)

    def learn_builds(self, configs: Configs) -> None:
        self.builds = builds_of(self.outcome, configs)


def recalled(dataset: Dataset, history: Sequence[Record], configs: Configs) -> ProfilingResults:
    """What a journal says of pilots and units, without trying anything."""
    found = ProfilingResults(
        models_from_journal(dataset, history), rates_from_journal(history), _recalled_links(history)
    )
    found.learn_builds(configs)
    return found


def _recalled_links(history: Iterable[Record]) -> dict[str, Communication]:
    return {line["build"]: Communication(line["ratio"]) for line in history if line["event"] == "groups"}
