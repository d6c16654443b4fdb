"""A Python config: the data, functions, values and optimizer of its sweep, which the models are trained with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regatta.dql.evaluation.config_file import Config
from regatta.dql.evaluation.settings import SETTINGS
from regatta.errors import UsageError

_OF_THE_SEARCH = ("model",)


def values_of_sweep(config: Config) -> Config:
    """The config with the values of its sweep: those of the first configuration, and of the optimizer that it makes."""
    from regatta.network.torch.start_models import optimizer_values

    sweep = config.sweep
    assert sweep is not None
    if sweep.dataset.choice is not None:
        raise UsageError("The sweep of a config has one data set.", place=config.shown)
    first = next(iter(sweep.configs().values()))
    try:
        optimizer = optimizer_values(sweep.recipe.model_fn(dict(first)))
    except UsageError as error:
        error.place = error.place or config.shown
        raise
    goal = sweep.goal
    values: dict[str, Any] = {"epochs": goal.epochs, "seed": goal.seed, "metric": goal.metric, "mode": goal.mode}
    values |= {"visits": sweep.visits, **{name: first[name] for name in ("batch_size",) if name in first}, **optimizer}
    known = {*SETTINGS, *_OF_THE_SEARCH}
    return replace(config, values=values, others={name: value for name, value in first.items() if name not in known})
