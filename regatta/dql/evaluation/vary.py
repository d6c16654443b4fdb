"""Which values are tried: `vary config.base_lr in [...] and config.net["conv*"].lr auto using asha(n = 20)`.

Without `using`, and with `grid` or `random(n)`, every model is trained with every set of values: all combinations, or n
that are drawn. The other searches choose the model as well: it is one more axis of their space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regatta.configuration import Scalar
from regatta.dql import tree
from regatta.dql.evaluation.bound_evaluate import AxisValues, BoundAxis, BoundSetting, BoundUsing
from regatta.dql.evaluation.settings import (
    AUTO_MULT,
    AUTO_MULT_RANGE,
    GROUP_SETTINGS,
    SETTINGS,
    EvaluateSetting,
    group_key,
    nearest_settings,
)
from regatta.dql.evaluation.values import constant
from regatta.dql.parse import QueryError
from regatta.errors import UsageError, nearest
from regatta.search import Goal, Search, Train, asha, configs, hyperband, hyperband_brackets, optuna, pbt, random
from regatta.search.mutations import factor, resample
from regatta.search.spaces import Choice, Space, choice, integers, loguniform, uniform
from regatta.seeds import derive_seed

if TYPE_CHECKING:
    from regatta.dql.bind import Binder

SPACES: Mapping[str, Any] = {"choice": choice, "integers": integers, "loguniform": loguniform, "uniform": uniform}
SEARCHES: Mapping[str, tuple[str, ...]] = {  # and their options; the first one needs no name
    "grid": (), "random": ("n", "seed"), "asha": ("n", "R", "eta", "at_once", "seed"), "tpe": ("n", "at_once", "seed"),
    "hyperband": ("R", "eta", "seed"), "pbt": ("population", "every", "seed"),
}  # fmt: skip
POPULATION = 8
DRAWN = 16  # sets of values, where ranges are varied and no search is named
_OF_LINEAGES = ("model", "optimizer", "input_data")  # a child has its parent's, since it starts from its state
CONFIG = "config"
MODEL = "model"


# Tree to bound query


def bind_setting(binder: Binder, setting: tree.ConfigSetting) -> BoundSetting:
    """`config = "file"`, whose key is empty, or `config.epochs = 5`."""
    path, value = setting.path, constant(binder, setting.value)
    if path.root == CONFIG and not path.steps:
        if not isinstance(value, str) or not value:
            raise binder.error(f"config is the path of a file, not {value!r:.60}.", setting.value.span)
        return BoundSetting("", value, span=setting.span)
    key, known, selector = _setting_of(binder, path)
    if key == "input_data" and isinstance(value, list):
        raise binder.error("One data set is expected here.", setting.value.span, hint="Several are varied: vary ...")
    _check_value(binder, known, key, value, setting.value)
    pattern = None if selector is None else binder.bind_selector(selector)
    return BoundSetting(key, value, pattern, span=setting.span)


def bind_axis(binder: Binder, varied: tree.Varied) -> BoundAxis:
    key, known, selector = _setting_of(binder, varied.path)
    pattern = None if selector is None else binder.bind_selector(selector)
    if not known.varies:
        raise binder.error(
            f"config.{known.name} is the same for all models.", varied.path.span,
            hint=f"It is set: with config.{known.name} = ...",
        )  # fmt: skip
    values = _values(binder, known, key, varied)
    if values is None and pattern is not None:
        key = group_key(pattern.text, "lr_mult")
    elif values is None and not known.auto:
        raise binder.error(
            f"There are no automatic values of config.{known.name}.", varied.span,
            hint=f"List them: config.{known.name} in [...]",
        )  # fmt: skip
    return BoundAxis(key, values, pattern, span=varied.span)


def bind_using(binder: Binder, using: tree.NodeTemplate) -> BoundUsing:
    name = using.kind.lower()
    if name not in SEARCHES:
        raise binder.error(
            f"There is no search {using.kind!r:.60}.", using.span, candidates=nearest(name, SEARCHES),
            hint=f"Searches: {', '.join(SEARCHES)}.",
        )  # fmt: skip
    known, options = SEARCHES[name], dict[str, Any]()
    for argument in using.arguments:
        match argument:
            case tree.CompareTree("=", tree.Path(option, ()), value):
                pass
            case _ if known and not options:
                option, value = known[0], argument
            case _:
                raise binder.error(f"An option of {name} has a name.", argument.span, hint=f"{name}: {_listed(known)}")
        if option not in known:
            raise binder.error(
                f"{name} has no option {option!r:.60}.", argument.span, candidates=nearest(option, known),
                hint=f"{name}: {_listed(known)}",
            )  # fmt: skip
        if option in options:
            raise binder.error(f"The option {option} is given twice.", argument.span)
        options[option] = constant(binder, value)
        if isinstance(options[option], bool) or not isinstance(options[option], int):
            raise binder.error(f"{option} is a whole number, not {options[option]!r:.60}.", value.span)
    if name in ("random", "asha", "tpe") and "n" not in options:
        raise binder.error(f"{name} needs the number of configurations.", using.span, hint=f"For example: {name}(20)")
    return BoundUsing(name, options, span=using.span)


def _listed(options: Sequence[str]) -> str:
    return ", ".join(options) or "no options"


def _setting_of(binder: Binder, path: tree.Path) -> tuple[str, EvaluateSetting, tree.Selector | None]:
    """The key, the setting, and the layers of `config.base_lr` or `config.net["conv*"].lr`."""
    if path.root != CONFIG:
        raise binder.error(
            f"Settings are those of {CONFIG}, not of {path.root!r:.60}.", path.span,
            candidates=nearest(path.root, [CONFIG]), hint=f"For example: {CONFIG}.base_lr",
        )  # fmt: skip
    match path.steps:
        case (tree.Field("net", None), tree.Selector() as selector, tree.Field(rate, None)):
            if rate not in GROUP_SETTINGS:
                raise binder.error(
                    f"Layers have no setting {rate!r:.60}.", path.steps[-1].span,
                    candidates=nearest(rate, GROUP_SETTINGS), hint=f"They have {' and '.join(GROUP_SETTINGS)}.",
                )  # fmt: skip
            return group_key(binder.bind_selector(selector).text, rate), GROUP_SETTINGS[rate], selector
        case (tree.Field("net", None), *_):
            raise binder.error("Layers are selected here.", path.span, hint='For example: config.net["conv*"].lr')
        case (tree.Field(name, None),):
            if name not in SETTINGS:
                raise unknown_setting(binder, name, path.steps[0])
            return name, SETTINGS[name], None
    raise binder.error("A setting is expected here.", path.span, hint="For example: config.base_lr")


def unknown_setting(binder: Binder, name: str, place: tree.Tree) -> QueryError:
    return binder.error(
        f"There is no setting {name!r:.60}.", place.span, candidates=nearest_settings(name),
        hint="`regatta query --template` lists them.",
    )  # fmt: skip


def _values(binder: Binder, known: EvaluateSetting, key: str, varied: tree.Varied) -> AxisValues:
    options = varied.options
    if options is None:
        return None
    if isinstance(options, tree.Call):
        if options.name not in SPACES:
            raise binder.error(
                f"There is no space {options.name!r:.60}.", options.span, candidates=nearest(options.name, SPACES),
                hint=f"Spaces: {', '.join(SPACES)}.",
            )  # fmt: skip
        arguments = [constant(binder, argument) for argument in options.arguments]
        try:
            space: Space = SPACES[options.name](*arguments)
        except UsageError as error:
            raise binder.error(error.message, options.span, hint=error.hint) from None
        except TypeError:
            raise binder.error(f"{options.name} does not take {len(arguments)} arguments.", options.span) from None
        if isinstance(space, Choice):
            return _checked(binder, known, key, list(space.values), options)
        if known.kind not in ("number", "whole") or (known.kind == "whole" and options.name != "integers"):
            wanted = "integers(...)" if known.kind == "whole" else "a list"
            raise binder.error(f"config.{key} takes {wanted}.", options.span)
        if known.least is not None and space.low < known.least:
            raise binder.error(f"config.{key} is from {known.least:g}.", options.span)
        return space
    found = constant(binder, options)
    return _checked(binder, known, key, found if isinstance(found, list) else [found], options)


def _checked(
    binder: Binder, known: EvaluateSetting, key: str, values: list[Any], place: tree.Expression
) -> tuple[Scalar, ...]:
    if not values:
        raise binder.error("The list is empty: there is nothing to try.", place.span)
    items = place.items if isinstance(place, tree.List) and len(place.items) == len(values) else [place] * len(values)
    for value, item in zip(values, items, strict=True):
        _check_value(binder, known, key, value, item)
    return tuple({repr(value): value for value in values}.values())


def _check_value(binder: Binder, known: EvaluateSetting, key: str, value: Any, place: tree.Tree) -> None:
    problem = known.problem(value)
    if problem is not None:
        raise binder.error(f"config.{key} {problem}.", place.span, candidates=known.nearest(value))


# Bound query to search


def axis_space(axis: BoundAxis, draws: bool) -> Space:
    """The values of an axis; automatic ones depend on whether the search draws them."""
    if isinstance(axis.values, tuple):
        return Choice(axis.values)
    if axis.values is not None:
        return axis.values
    if axis.selector is not None:
        return AUTO_MULT_RANGE if draws else Choice(AUTO_MULT)
    known = SETTINGS[axis.key]
    return known.auto_range if draws and known.auto_range is not None else Choice(known.auto)


def make_search(
    models: Sequence[str],
    fixed: Mapping[str, Scalar],
    axes: Sequence[BoundAxis],
    using: BoundUsing | None,
    goal: Goal,
) -> Search:
    """The search over models and values. Each configuration has the fixed values as well."""
    name = using.search if using is not None else None
    spaces = {axis.key: axis_space(axis, name not in (None, "grid")) for axis in axes}
    ranges = [key for key, space in spaces.items() if not isinstance(space, Choice)]
    if name is None:
        name, options = ("random", {"n": DRAWN}) if ranges else ("grid", {})
    else:
        assert using is not None
        options = dict(using.options)
    try:
        if name == "grid" and ranges:
            raise UsageError(
                f"config.{ranges[0]} is a range, and a grid needs the values themselves.",
                hint="List them, or draw them: using random(20)",
            )
        if name in ("grid", "random"):
            return configs(
                {MODEL: model, **fixed, **values} for model in models for values in _sets(name, spaces, options, goal)
            )
        return _adaptive(name, {MODEL: Choice(tuple(models)), **_constants(fixed), **spaces}, options)
    except UsageError as error:
        raise (
            error
            if using is None or isinstance(error, QueryError)
            else UsageError(f"using {name}: {error.message}", hint=error.hint)
        ) from error


def _sets(
    name: str, spaces: Mapping[str, Space], options: Mapping[str, Any], goal: Goal
) -> Iterator[dict[str, Scalar]]:
    """The sets of values with which every model is trained."""
    if not spaces:
        yield {}
    elif name == "grid":
        from regatta.search import grid

        for action in grid(spaces).start(goal):
            assert isinstance(action, Train)
            yield action.config
    else:
        seed = options.get("seed", goal.seed)
        size = _size(spaces)
        count = options["n"] if size is None else min(options["n"], size)
        for action in random(spaces, n=count, seed=derive_seed(seed, "evaluate")).start(goal):
            assert isinstance(action, Train)
            yield action.config


def count_configurations(models: int, axes: Sequence[BoundAxis], using: BoundUsing | None, goal: Goal) -> int:
    """How many configurations would be trained, counted without making them."""
    name = None if using is None else using.search
    options: Mapping[str, int] = {} if using is None else using.options
    spaces = {axis.key: axis_space(axis, name not in (None, "grid")) for axis in axes}
    size = _size(spaces)
    if name in (None, "grid"):
        return models * (DRAWN if size is None else size)
    if name == "random":
        return models * (options["n"] if size is None else min(size, options["n"]))
    if name == "hyperband":
        return sum(rungs[0].size for rungs in hyperband_brackets(options.get("R", goal.epochs), options.get("eta", 3)))
    return options["n"] if "n" in options else options.get("population", POPULATION) * goal.epochs


def _size(spaces: Mapping[str, Space]) -> int | None:
    total = 1
    for space in spaces.values():
        if space.size is None:
            return None
        total *= space.size
    return total


def _constants(fixed: Mapping[str, Scalar]) -> dict[str, Space]:
    return {key: Choice((value,)) for key, value in fixed.items()}


def _adaptive(name: str, space: Mapping[str, Space], options: Mapping[str, Any]) -> Search:
    if name == "asha":
        return asha(space, **options)
    if name == "hyperband":
        return hyperband(space, **options)
    if name == "tpe":
        return optuna(space, sampler="tpe", **options)
    rules = {key: resample() if isinstance(values, Choice) else factor(0.8, 1.25) for key, values in space.items()}
    mutate = {key: rule for key, rule in rules.items() if space[key].size != 1 and key not in _OF_LINEAGES}
    return pbt(space, mutate=mutate, **{"population": POPULATION, "every": 1, **options})
