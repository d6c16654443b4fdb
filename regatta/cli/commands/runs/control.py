"""`regatta stop`, `extend` and `clone`: steer a run while it is trained, from any terminal."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from regatta.cli import ui
from regatta.cli.arguments import Verbs, add_json, add_repo, assignments, named_run


@dataclass(frozen=True)
class Control:
    """A verb that asks something of one configuration of a run."""

    name: str
    help: str
    description: str
    add: Callable[[argparse.ArgumentParser], None]
    ask: Callable[[Any, argparse.Namespace], dict[str, Any]]

    def add_parser(self, verbs: Verbs) -> argparse.ArgumentParser:
        parser = verbs.add_parser(self.name, help=self.help, description=self.description)
        parser.add_argument("run_name", metavar="RUN", help="the name of a run")
        parser.add_argument("config", metavar="CONFIG", help="the id of a configuration, or how it begins")
        self.add(parser)
        add_repo(parser)
        add_json(parser)
        return parser

    def run(self, args: argparse.Namespace) -> int:
        return tell(self.ask(named_run(args), args), args.json)


def tell(answer: dict[str, Any], as_json: bool) -> int:
    if as_json:
        from regatta.cli.output.json_documents import document

        ui.write_json(document(**answer))
    else:
        ui.write(answer["text"])
    return 0


def _add_extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("epochs", metavar="EPOCHS", type=int, help="how many more")


def _add_clone(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("changes", metavar="NAME=VALUE", nargs="+", help="what is different")
    parser.add_argument("--fresh", action="store_true", help="begin anew, not with the state of the last epoch")
    parser.add_argument("--epochs", type=int, metavar="N", help="how many; by default those that were left")


stop = Control(
    "stop",
    "give a configuration of a run no more units",
    "Stop a configuration after the unit that is under way; `regatta resume RUN CONFIG` takes it up again.",
    lambda parser: None,
    lambda chosen, args: chosen.stop(args.config),
)
extend = Control(
    "extend",
    "train a configuration for more epochs",
    "Train a configuration for more epochs than it was to have, also when it is done.",
    _add_extend,
    lambda chosen, args: chosen.extend(args.config, args.epochs),
)
clone = Control(
    "clone",
    "train a configuration with some values changed, beside it",
    "Train a configuration once more with some values changed; it begins with the original's last state.",
    _add_clone,
    lambda chosen, args: chosen.clone(args.config, assignments(args.changes), warm=not args.fresh, epochs=args.epochs),
)
