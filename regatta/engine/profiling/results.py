"""The results of profiling: of single models, of packs, and of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from regatta.data import Dataset
from regatta.engine.profiling.models import Configs, ModelProfiles, models_from_journal
from regatta.engine.profiling.packs import builds_of, rates_from_journal
from regatta.journal.journal_file import Record
from regatta.plan.strategy.form_packs import Builds, PackRate
from regatta.plan.strategy.groups_or_hops import Communication


@dataclass
class ProfilingResults:
    """Profiles by configuration; by build the rates of packs, and what groups spend on communication."""

    models: ModelProfiles
    pack_rates: dict[str, PackRate] = field(default_factory=dict)
    communication: dict[str, Communication] = field(default_factory=dict)
    builds: Builds = field(default_factory=Builds)


def results_from_journal(dataset: Dataset, history: Sequence[Record], configs: Configs) -> ProfilingResults:
    """What a journal says about profiling and units; no worker is needed."""
    groups = {line["build"]: Communication(line["ratio"]) for line in history if line["event"] == "groups"}
    models = models_from_journal(dataset, history)
    return ProfilingResults(models, rates_from_journal(history), groups, builds_of(models, configs))
