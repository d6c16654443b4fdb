"""The settings of an evaluation by name, as in `config.base_lr`: what they may be, and what they are by default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from regatta.checks import is_number
from regatta.errors import nearest
from regatta.format import brief
from regatta.search.spaces import Space, loguniform, uniform

SettingKind: TypeAlias = Literal["text", "number", "whole", "boolean"]
_KINDS = {"text": "a text", "number": "a number", "whole": "a whole number", "boolean": "true or false"}
LOSS_NAMES = ("cross_entropy", "nll", "multi_margin", "mse", "l1", "smooth_l1", "huber", "binary_cross_entropy")
OPTIMIZER_NAMES = ("sgd", "adam", "adamw", "nadam", "radam", "adamax", "adagrad", "adadelta", "rmsprop")
DIGITS = "digits"


@dataclass(frozen=True)
class EvaluateSetting:
    """`auto` are the values of `vary ... auto` in a grid, and `auto_range` is where other searches draw from."""

    name: str
    kind: SettingKind
    default: Any
    meaning: str
    least: float | None = None
    options: tuple[str, ...] = ()
    auto: tuple[Any, ...] = ()
    auto_range: Space | None = None
    varies: bool = True
    below: float | None = None

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, as the end of a sentence that begins with the name; None if nothing is."""
        checks = {
            "text": isinstance(value, str) and value != "",
            "number": is_number(value),
            "whole": isinstance(value, int) and not isinstance(value, bool),
            "boolean": isinstance(value, bool),
        }
        if not checks[self.kind] or not self._is_in_range(value):
            bound = "" if self.least is None else f" from {self.least:g}"
            bound += "" if self.below is None else f" and below {self.below:g}"
            return f"is {_KINDS[self.kind]}{bound}, not {brief(value)}"
        if self.options and value not in self.options:
            return f"is one of {', '.join(self.options)}, not {brief(value)}"
        return None

    def _is_in_range(self, value: Any) -> bool:
        return (self.least is None or value >= self.least) and (self.below is None or value < self.below)

    def nearest(self, value: object) -> tuple[str, ...]:
        """The options that may be meant by a wrong value."""
        return nearest(str(value), self.options)


RATES = (0.1, 0.01, 0.001)
SETTINGS: Mapping[str, EvaluateSetting] = {
    each.name: each
    for each in (
        EvaluateSetting("input_data", "text", None, "the data set: digits, or a name in [data]"),
        EvaluateSetting("loss", "text", "cross_entropy", "how wrong an output is", options=LOSS_NAMES, varies=False),
        EvaluateSetting("optimizer", "text", "sgd", "of PyTorch", options=OPTIMIZER_NAMES, auto=("sgd", "adam")),
        EvaluateSetting("base_lr", "number", 0.01, "the learning rate", 0, (), RATES, loguniform(1e-4, 1e-1)),
        EvaluateSetting("batch_size", "whole", 32, "rows of a step", 1, auto=(16, 32, 64)),
        EvaluateSetting("epochs", "whole", 1, "passes over the data", 1, varies=False),
        EvaluateSetting("momentum", "number", None, "of sgd and rmsprop", 0, (), (0.0, 0.9), uniform(0.0, 0.99)),
        EvaluateSetting("weight_decay", "number", None, "", 0, (), (0.0, 0.0001), loguniform(1e-6, 1e-2)),
        EvaluateSetting("nesterov", "boolean", None, "of sgd", auto=(False, True)),
        EvaluateSetting("dampening", "number", None, "of sgd", 0),
        EvaluateSetting("alpha", "number", None, "of rmsprop", 0),
        EvaluateSetting("eps", "number", None, "of all optimizers but sgd", 0),
        EvaluateSetting("amsgrad", "boolean", None, "of adam and adamw", auto=(False, True)),
        EvaluateSetting("centered", "boolean", None, "of rmsprop", auto=(False, True)),
        EvaluateSetting("metric", "text", "loss", "what ranks the models", varies=False),
        EvaluateSetting("mode", "text", None, "which values of it are better", options=("min", "max"), varies=False),
        EvaluateSetting("seed", "whole", 0, "of all that is random", 0, varies=False),
        EvaluateSetting("visits", "text", "free", "seeded: in a fixed order", None, ("free", "seeded"), varies=False),
        EvaluateSetting("workers", "whole", None, "how many train at a time", 1, varies=False),
        EvaluateSetting("partitions", "whole", 4, "in which a single file is split", 1, varies=False),
        EvaluateSetting("eval_fraction", "number", 0.2, "of a single file, for evaluation", 0, varies=False, below=1),
    )
}  # fmt: skip
GROUP_SETTINGS: Mapping[str, EvaluateSetting] = {
    "lr": EvaluateSetting("lr", "number", None, "the learning rate of these layers", 0),
    "lr_mult": EvaluateSetting("lr_mult", "number", None, "their rate as a multiple of base_lr", 0),
}
AUTO_MULT = (1.0, 0.1)  # config.net["conv*"].lr auto: as a multiple of base_lr
AUTO_MULT_RANGE = loguniform(0.01, 1.0)
OPTIMIZER_SETTINGS = ("momentum", "weight_decay", "nesterov", "dampening", "alpha", "eps", "amsgrad", "centered")


_SYNONYMS = {
    "lr": "base_lr",
    "rate": "base_lr",
    "learning_rate": "base_lr",
    "batch": "batch_size",
    "data": "input_data",
}


def nearest_settings(name: str, others: Iterable[str] = ()) -> tuple[str, ...]:
    """The settings whose names are most similar, or mean the same."""
    known = _SYNONYMS.get(name.lower())
    return nearest(name, (*SETTINGS, *others)) if known is None else (known,)


def group_key(selector: str, rate: str) -> str:
    """The value of a configuration that is the rate of some layers: net["conv*"].lr"""
    return f'net["{selector}"].{rate}'


def template() -> str:
    """A commented config file in TOML, with every setting."""
    lines = [
        '# What `evaluate` trains models on, and how: evaluate m from ... with config = "this file"',
        "# Every line that begins with one # shows a default, or an example.",
        "",
    ]
    for each in SETTINGS.values():
        shown = _shown(each)
        options = f": {', '.join(each.options)}" if each.options else ""
        meaning = f"{each.meaning}{options}".strip(": ")
        lines.append(f"{shown:<32}# {meaning}" if meaning else shown)
    return "\n".join([*lines, "", *_TEMPLATE_TABLES, ""])


def _shown(setting: EvaluateSetting) -> str:
    if setting.name == "input_data":
        return f'input_data = "{DIGITS}"'
    examples = {"momentum": 0.9, "weight_decay": 1e-4, "nesterov": True, "dampening": 0.0, "alpha": 0.99, "eps": 1e-8,
                "amsgrad": True, "centered": True, "mode": "min", "workers": 2}  # fmt: skip
    value = examples.get(setting.name) if setting.default is None else setting.default
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else f"{value}"
    return f"# {setting.name} = {text}"


_TEMPLATE_TABLES = (
    "# Learning rates of layers; lr_mult is a multiple of base_lr. Of several that match a layer, the last counts.",
    '# [net."conv*"]',
    "# lr_mult = 0.1",
    "",
    "# Data sets by name. Paths are below the folder of this file, and may have wildcards.",
    "# [data]",
    '# small = "small.npz"                       # a file with x and y, which is split',
    "# [data.large]",
    '# train = ["large/train-*.parquet"]         # a file for each partition',
    '# eval = ["large/eval-*.parquet"]',
)
