"""`regatta stop`, `extend` and `clone`: steer a run in progress, from any terminal."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from regatta.cli import ui
from regatta.cli.arguments import add_repo_and_json, assignments, named_run


@dataclass(frozen=True)
class Control:
    """A verb that sends a request about one configuration of a run; it has what the modules of other verbs have."""

    NAME: str
    HELP: str
    DESCRIPTION: str
    add: Callable[[argparse.ArgumentParser], object]
    request: Callable[[Any, argparse.Namespace], dict[str, Any]]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("run_name", metavar="RUN", help="the name of a run")
        parser.add_argument("config", metavar="CONFIG", help="the id of a configuration, or its beginning")
        self.add(parser)
        add_repo_and_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        return print_answer(self.request(named_run(args), args), args.json)


def print_answer(answer: dict[str, Any], as_json: bool) -> int:
    if as_json:
        ui.write_json(**answer)
    else:
        ui.write(answer["text"])
    return 0


def _add_clone(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("changes", metavar="NAME=VALUE", nargs="+", help="the changed values")
    parser.add_argument("--fresh", action="store_true", help="start from scratch, not from the state of the last epoch")
    parser.add_argument("--epochs", type=int, metavar="N", help="the number of epochs (default: those that were left)")


stop = Control(
    "stop",
    "stop a configuration of a run",
    "Stop a configuration after its current unit. To resume it: regatta resume RUN CONFIG",
    lambda parser: None,
    lambda chosen, args: chosen.stop(args.config),
)
extend = Control(
    "extend",
    "train a configuration for more epochs",
    "Train a configuration for more epochs than planned, even if it is done.",
    lambda parser: parser.add_argument("epochs", metavar="EPOCHS", type=int, help="the number of additional epochs"),
    lambda chosen, args: chosen.extend(args.config, args.epochs),
)


class Retry:
    """`regatta retry`: a request about several configurations."""

    NAME, HELP = "retry", "train configurations that failed again"
    DESCRIPTION = (
        "Train configurations that failed again, from their last good state. Without CONFIG: all that failed. "
        "If the run is not running, resume it afterwards."
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("run_name", metavar="RUN", help="the name of a run")
        parser.add_argument(
            "configs",
            metavar="CONFIG",
            nargs="*",
            default=[],
            help="the ids of configurations (default: all that failed)",
        )
        add_repo_and_json(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        chosen = named_run(args)
        answers = [answer for config in args.configs or [None] for answer in chosen.retry(config)]
        if args.json:
            ui.write_json(answers=answers)
        elif not answers:
            ui.write(f"{chosen.name} has no failed configuration that is not tried again already")
        else:
            for answer in answers:
                ui.write(answer["text"])
        return 0


clone = Control(
    "clone",
    "train a copy of a configuration with some values changed",
    "Train a copy of a configuration with some values changed, from the last state of the original.",
    _add_clone,
    lambda chosen, args: chosen.clone(args.config, assignments(args.changes), warm=not args.fresh, epochs=args.epochs),
)
