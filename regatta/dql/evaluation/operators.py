"""The operators of evaluate: the sweep that is launched, the versions that it makes, and what `explain` says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from regatta.checks import check_names
from regatta.configuration import Scalar
from regatta.dql.evaluation.bound_evaluate import BoundAxis, BoundEvaluate, BoundSetting
from regatta.dql.evaluation.config_file import Config, read_config
from regatta.dql.evaluation.datasets import BY, known_names, open_datasets
from regatta.dql.evaluation.python_config import values_of_sweep
from regatta.dql.evaluation.settings import OPTIMIZER_SETTINGS, SETTINGS, group_key
from regatta.dql.evaluation.start_models import (
    LayerGroups,
    StartModel,
    check_inputs,
    check_targets,
    names_of_layers_with_weights,
    parameters_of_layers,
    staged,
    start_models,
)
from regatta.dql.evaluation.vary import axis_space, count_configurations, make_search
from regatta.dql.networks.bound_networks import inner_derivation
from regatta.dql.networks.derived_models import DerivedModel
from regatta.dql.networks.layer_sets import NamedLayers, listed_layers
from regatta.dql.networks.operators import derived_models, must_run_first
from regatta.dql.parse import QueryError
from regatta.dql.run import QueryContext, make_versions
from regatta.errors import RegattaError, UsageError, nearest
from regatta.format import count as count_of
from regatta.search import Goal, keeping
from regatta.search.base import Search, Train

if TYPE_CHECKING:
    from regatta.data import Dataset
    from regatta.repo import Version
    from regatta.run import Run
    from regatta.sweep import Sweep

_SWEEP_SETTINGS = ("epochs", "metric", "mode", "seed", "visits", "workers", "partitions", "eval_fraction")
OPTIONS = ("name", "workers", "cluster", "pack", "load_sweep")
LAUNCH_OPTIONS = ("wait", "progress", "resume", "changed_code")  # of `Sweep.launch`


@dataclass(frozen=True)
class PreparedEvaluation:
    """An evaluate that is checked, but whose models are in no files yet."""

    query: BoundEvaluate
    models: Sequence[StartModel]
    config: Config
    values: Mapping[str, Any]  # by name, defaults included
    dataset: Dataset
    search: Search
    goal: Goal
    groups: LayerGroups

    @property
    def names(self) -> dict[str, str]:
        """The names of the models by the value `model` of configurations."""
        return {model.key: model.name for model in self.models}


def launch_evaluation(context: QueryContext, query: BoundEvaluate) -> Run:
    """Train what a query enumerates, as one run."""
    context.repo.check_writable()
    options = dict(context.launch)
    check_names("launch", options, (*LAUNCH_OPTIONS, *OPTIONS))
    prepared = prepare_evaluation(context, query)
    with swept(context, prepared, options) as sweep:
        return sweep.launch(**{name: options[name] for name in LAUNCH_OPTIONS if name in options})


def evaluate_versions(context: QueryContext, query: BoundEvaluate) -> list[Version]:
    """Train what a query enumerates, and return the versions of the models that were kept, best first."""
    from regatta.dql.evaluation.result import evaluation_rows

    run = launch_evaluation(replace(context, launch={**context.launch, "wait": True}), query)
    kept = [row["version"] for row in evaluation_rows(run) if row["result"] == "kept"]
    return [context.repo.resolve(version) for version in kept if version is not None]


def prepare_evaluation(context: QueryContext, query: BoundEvaluate) -> PreparedEvaluation:
    """Check everything: nothing is written before, except for data sets that must be split."""
    config = _config(context, query)
    rates = {group_key(each.selector.text, each.rate): each.value for each in config.rates}
    values = {name: each.default for name, each in SETTINGS.items() if each.default is not None}
    given = {setting.key: setting.value for setting in query.settings}
    values |= {**rates, **config.values, **given}
    models = _models(context, query)
    if not models:
        raise UsageError("The query selects no models, so there is nothing to train.")
    names = _data_names(query, config, given)
    axes = query.axes
    fixed = _fixed(values, axes, names, config)
    _check_optimizer(query, config, fixed, axes)
    if config.sweep is None:
        _check_metrics(query, config, values)
    goal = Goal(values["metric"], _mode(values), values["epochs"], values["seed"])
    _check_ends_of_rules(query, goal)
    count = count_configurations(len(models), axes, query.using, goal)
    if count > context.max_models:
        raise UsageError(
            f"The query would train {count:,} models; {context.max_models:,} is the limit.",
            hint=f"To train them all: --max-models {count}, or with_options(max_models={count}) in Python.",
        )
    keys = [model.key for model in models]
    try:
        search = make_search(keys, fixed, axes, query.using, goal)
        search = keeping(search, *(each.rule for each in query.rules)) if query.rules else search
        search.start(goal)
    except QueryError:
        raise
    except UsageError as error:
        place = query.using if query.using is not None else (query.axes or (query,))[0]
        raise QueryError(error.message, query.text, place.span, hint=error.hint) from error
    groups = _layer_groups(query, config, models)
    dataset = (
        config.sweep.dataset if config.sweep is not None else open_datasets(names, config, values, context.repo.folder)
    )
    check_inputs(models, dataset)
    if config.sweep is None:
        check_targets(models, dataset, values["loss"])
    _warn_of_late_rules(context, query, goal, dataset, search)
    return PreparedEvaluation(query, models, config, values, dataset, search, goal, groups)


@contextmanager
def swept(context: QueryContext, prepared: PreparedEvaluation, options: Mapping[str, Any]) -> Iterator[Sweep]:
    """The sweep of an evaluation, whose models are in files of the repository while this is open."""
    from regatta.cluster import Cluster
    from regatta.network.torch.start_models import OF_CLASSES, accuracy, named_loss
    from regatta.sweep import Sweep

    query, values, theirs = prepared.query, prepared.values, prepared.config.sweep
    workers = options.get("workers", values.get("workers"))
    cluster = options.get("cluster") or (
        theirs.cluster if theirs is not None and workers is None else Cluster.local(workers)
    )
    functions: dict[str, Any] = {
        "loss_fn": named_loss,
        "eval_fn": accuracy if values["loss"] in OF_CLASSES else None,
    }
    if theirs is not None:
        kinds = ("loss_fn", "train_fn", "eval_fn", "input_fn", "transform_fn")
        functions = {kind: getattr(theirs.recipe, kind) for kind in kinds}
    with staged(prepared.models, prepared.groups, context.repo.folder) as models:
        yield Sweep(
            prepared.dataset, prepared.search, models, **functions, epochs=prepared.goal.epochs,
            metric=prepared.goal.metric, mode=prepared.goal.mode, seed=prepared.goal.seed, framework="torch",
            cluster=cluster, repo=context.repo.folder, name=query.into or options.get("name"), visits=values["visits"],
            pack=options.get("pack"), base={model.key: model.base for model in prepared.models},
        )  # fmt: skip


def plan_evaluation(context: QueryContext, query: BoundEvaluate, analyze: bool) -> Mapping[str, Any]:
    """What would be trained. With `analyze`, a few batches of each model are, for the planner's time and memory.

    If the query reads from one which makes versions, the models are not known before that has run.
    """
    from regatta.dql.run import plan

    inner = inner_derivation(query.models.sources)
    sources = plan(context, query.models if inner is None else inner, analyze)
    if must_run_first(query.models):
        return {"kind": "evaluate", "from": sources}
    prepared = prepare_evaluation(context, query)
    found: dict[str, Any] = {
        "kind": "evaluate",
        "trains": count_configurations(len(prepared.models), query.axes, query.using, prepared.goal),
        "models": [{"model": model.name, "key": model.key} for model in prepared.models],
        "epochs": prepared.goal.epochs,
        "data": prepared.dataset.name,
        "search": "grid" if query.using is None else query.using.search,
        "keep": [str(each.rule) for each in query.rules],
        "from": sources,
    }
    if analyze:
        with swept(context, prepared, context.launch) as sweep:
            found["plan"] = sweep.explain().to_json()
    return found


# The parts of an evaluation


def _warn_of_late_rules(
    context: QueryContext, query: BoundEvaluate, goal: Goal, dataset: Dataset, search: Search
) -> None:
    """Say which rules of `keep` that count iterations decide nothing, because no model is trained for so long."""
    rules = [each.rule for each in query.rules if each.rule.unit == "iterations"]
    sizes = [action.config.get("batch_size") for action in search.start(goal) if isinstance(action, Train)]
    smallest = min((size for size in sizes if isinstance(size, int)), default=0)
    rows = [part.rows for part in dataset.train]
    if not smallest or None in rows or dataset.choice is not None:
        return  # it is not known
    most = goal.epochs * sum(-(-(count or 0) // smallest) for count in rows)
    for rule in rules:
        if rule.after > most:
            context.say(f"keep {rule}: it decides nothing, since no model is trained for more than {most} {rule.unit}")


def _check_ends_of_rules(query: BoundEvaluate, goal: Goal) -> None:
    """Refuse rules of `keep` that can never act, because the training ends before."""
    for each in query.rules:
        if each.rule.unit == "epochs" and each.rule.after > goal.epochs:
            raise QueryError(
                f"This rule can never act: the models are trained for {count_of(goal.epochs, 'epoch')}.",
                query.text, each.span, hint=f"Train them longer: with config.epochs = {each.rule.after}",
            )  # fmt: skip


def _config(context: QueryContext, query: BoundEvaluate) -> Config:
    if query.config is None:
        return Config()
    try:
        config = read_config(query.config.value, saved=query.saved, load_sweep=context.launch.get("load_sweep"))
    except RegattaError as error:
        if error.place is None:
            error.place = query.config.value
        raise
    return config if config.sweep is None else values_of_sweep(config)


def _models(context: QueryContext, query: BoundEvaluate) -> list[StartModel]:
    inner = inner_derivation(query.models.sources)
    if inner is None:
        return start_models(context.repo, sorted(make_versions(context, query.models), key=lambda each: each.key))
    made: list[DerivedModel] = derived_models(context, inner)
    where = query.models.where
    return start_models(
        context.repo, [each for each in made if where is None or NamedLayers(each.network).holds(where, {})]
    )


def _data_names(query: BoundEvaluate, config: Config, given: Mapping[str, Any]) -> list[str]:
    """The data sets that are used, in the order of the text."""
    axis = next((axis for axis in query.axes if axis.key == BY), None)
    if config.sweep is not None:
        if axis is not None or BY in given:
            raise UsageError("The data set is that of the sweep in the config.", place=config.shown)
        return [config.sweep.dataset.name]
    if axis is not None:
        if not isinstance(axis.values, tuple):
            raise QueryError("The data sets are listed.", query.text, axis.span, hint=f"Known: {known_names(config)}")
        return [str(name) for name in axis.values]
    if BY in given:
        return [given[BY]]
    if len(config.input_data) == 1 or (len(config.data) == 1 and not config.input_data):
        return [*config.input_data, *config.data][:1]
    listed = config.input_data or tuple(config.data)
    if listed:
        raise UsageError(
            f"The config names {len(listed)} data sets: {', '.join(listed)}.", place=config.shown,
            hint=f'Vary them, or take one: vary config.{BY} in ["{listed[0]}", ...], with config.{BY} = "{listed[0]}"',
        )  # fmt: skip
    raise UsageError(
        "An evaluate needs data to train on.",
        place=config.shown,
        hint=f'Put {BY} into a config file (regatta query --template), or: with config.{BY} = "digits"',
    )


def _fixed(
    values: Mapping[str, Any], axes: Sequence[BoundAxis], names: Sequence[str], config: Config
) -> dict[str, Scalar]:
    """The values that all configurations have."""
    varied = {axis.key for axis in axes}
    fixed = {key: value for key, value in values.items() if key not in varied and key not in _SWEEP_SETTINGS}
    if BY not in varied:
        fixed[BY] = names[0]
    if config.sweep is not None:
        del fixed["loss"]  # it is the sweep's own
    return {**config.others, **fixed}


def _mode(values: Mapping[str, Any]) -> Any:
    from regatta.repo.intake.metrics import usual_mode

    return values.get("mode") or usual_mode(values["metric"])


def _check_optimizer(
    query: BoundEvaluate, config: Config, fixed: Mapping[str, Scalar], axes: Sequence[BoundAxis]
) -> None:
    """Refuse values that an optimizer does not take."""
    from regatta.network.torch.start_models import optimizer_options

    by_key = {axis.key: axis for axis in axes}
    names = [fixed["optimizer"]] if "optimizer" in fixed else list(axis_space(by_key["optimizer"], False).values)  # type: ignore[union-attr]
    for key in OPTIMIZER_SETTINGS:
        for name in names:
            if (key in fixed or key in by_key) and key not in optimizer_options(str(name)):
                known = ", ".join(optimizer_options(str(name))) or "none"
                raise _at(query, config, key, f"The optimizer {name} has no {key}.", f"It has base_lr and {known}.")


def _check_metrics(query: BoundEvaluate, config: Config, values: Mapping[str, Any]) -> None:
    """Refuse metrics that the training does not report. Those of a sweep are known only when it runs."""
    from regatta.network.torch.start_models import OF_CLASSES

    known = ("loss", "accuracy") if values["loss"] in OF_CLASSES else ("loss",)
    hint = f"With the loss {values['loss']}, training reports {' and '.join(known)}."
    for rule in query.rules:
        for metric in rule.metrics:
            if metric not in known:
                message, near = f"There will be no metric {metric!r:.60}.", nearest(metric, known)
                raise QueryError(message, query.text, rule.span, candidates=near, hint=hint)
    if values["metric"] not in known:
        message, near = f"There will be no metric {values['metric']!r:.60}.", nearest(values["metric"], known)
        raise _at(query, config, "metric", message, hint, near)


def _layer_groups(query: BoundEvaluate, config: Config, models: Sequence[StartModel]) -> LayerGroups:
    """The parameters of each rate of layers, by model; a model without such layers is refused."""
    parts: list[BoundSetting | BoundAxis] = [*query.settings, *query.axes]
    selectors = {group_key(each.selector.text, each.rate): each.selector for each in config.rates}
    selectors |= {part.key: part.selector for part in parts if part.selector is not None}
    found = {model.key: parameters_of_layers(model, selectors) for model in models if selectors}
    for model in models if selectors else ():
        for key in (key for key, parameters in found[model.key].items() if not parameters):
            names = names_of_layers_with_weights(model)
            selector = selectors[key].text
            message = f'config.net["{selector}"] are rates of layers, but {model.name} has none of them with weights.'
            near = _nearest_selectors(selector, [name for each in names.values() for name in reversed(each)])
            raise _at(query, config, key, message, f"Its layers with weights are {listed_layers(list(names))}.", near)
    return found


def _nearest_selectors(selector: str, names: Sequence[str]) -> tuple[str, ...]:
    """What a selector without layers may mean: names, or its pattern after the beginning of a name: cnv* is conv*."""
    begin, pattern = re.fullmatch(r"([^*?\[(]*)(.*)", selector, re.DOTALL).groups()  # type: ignore[union-attr]
    if not begin or not pattern:
        return nearest(selector, names)
    return tuple(f"{name}{pattern}" for name in nearest(begin, [re.sub(r"\d+$", "", name) for name in names]))


def _at(
    query: BoundEvaluate, config: Config, key: str, message: str, hint: str, candidates: Sequence[str] = ()
) -> UsageError:
    """An error at the place where the query names a setting, or else its config."""
    parts: list[BoundSetting | BoundAxis] = [*query.axes, *query.settings]
    part = next((part for part in parts if part.key == key), None)
    if part is None:
        layers = re.fullmatch(r'net\["(.*)"\]\.\w+', key)
        place = config.place_of(key if layers is None else layers[1])
        return UsageError(message, place=place, hint=hint, candidates=candidates)
    return QueryError(message, query.text, part.span, hint=hint, candidates=candidates)
