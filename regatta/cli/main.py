"""The command `regatta` (and `dlv`): parses arguments, runs one verb, and turns its error into an exit code.

0 done, 1 failed or differs, 2 usage, 3 not found, 4 conflict, 130 interrupted, 141 broken pipe. An unexpected
exception shows its traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from regatta import __version__
from regatta.cli import ui
from regatta.cli.commands.repository import archive, backup, completion, doctor, fsck, gc, init
from regatta.cli.commands.runs import control, demo, explain, replay, resume, run, runs, show, simulate, worker
from regatta.cli.commands.versions import (
    add,
    checkout,
    commit,
    copy,
    delete,
    desc,
    diff,
    evaluate,
    log,
    query,
    rename,
    tag,
    undo,
)
from regatta.cli.commands.versions import list as list_
from regatta.errors import DISK_ERRORS, DiskError, RegattaError, UsageError, disk_error, nearest

VERBS = (
    demo, run, explain, runs, show, resume, control.stop, control.extend, control.clone, control.Retry, worker,
    replay, simulate,
    init, add, add.unstage, add.status, commit, list_, query, desc, diff, evaluate, log, checkout, copy, tag, rename,
    delete, undo,
    archive, backup, fsck, gc, doctor, completion,
)  # fmt: skip
GROUPS = {
    "train": ("demo", "run", "explain", "simulate", "resume", "stop", "extend", "clone", "retry", "worker", "replay"),
    "inspect": ("runs", "show", "list", "log", "desc", "diff", "eval", "query", "status"),
    "edit versions": ("init", "add", "unstage", "commit", "copy", "tag", "checkout", "rename", "delete", "undo"),
    "maintain": ("archive", "backup", "gc", "fsck", "doctor", "completion"),
}
INTERRUPTED, BROKEN_PIPE = 130, 141


class Parser(argparse.ArgumentParser):
    """Raises UsageError for wrong arguments, so that all errors look the same."""

    groups: Mapping[str, Sequence[argparse.Action]] | None = None

    def format_help(self) -> str:
        """The help of the program lists its verbs in groups; a verb has the help of argparse."""
        if self.groups is None:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage(None, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        options = [action for action in self._actions if action.option_strings]
        for title, actions in {**self.groups, "options": options}.items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        raise UsageError(message[:1].upper() + message[1:] + ".", hint=f"See: {self.prog} --help")


def entry() -> NoReturn:
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except RegattaError as error:
        ui.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        ui.message("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit, although its reader is gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        ui.error(disk_error(error))
        return DiskError.exit_code


def build_parser() -> tuple[Parser, dict[str, argparse.ArgumentParser]]:
    """The parser, and those of its verbs by name."""
    parser = Parser(
        prog="regatta",
        description="Train many deep-learning models as one job, and keep every one of them.",
        epilog="Start with: regatta demo",
    )
    parser.add_argument("--version", action="version", version=f"regatta {__version__}")
    parser.add_argument("--no-color", action="store_true", help="no colours, as with NO_COLOR in the environment")
    parser.add_argument("--wide", action="store_true", help="show every column of tables, however narrow the terminal")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    by_name: dict[str, argparse.ArgumentParser] = {}
    for verb in VERBS:
        added = verbs.add_parser(verb.NAME, help=verb.HELP, description=verb.DESCRIPTION)
        verb.add_arguments(added)
        added.set_defaults(run=verb.run)
        for option in ("--no-color", "--wide"):
            added.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        by_name[verb.NAME] = added
    shown = {action.dest: action for action in verbs._choices_actions}
    groups = {title: [shown[name] for name in names if name in shown] for title, names in GROUPS.items()}
    rest = [shown[name] for name in shown if all(name not in names for names in GROUPS.values())]
    parser.groups = {**groups, "more": rest} if rest else groups
    return parser, by_name


def _dispatch(argv: list[str]) -> int:
    parser, by_name = build_parser()
    _check_verb(argv, by_name)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse_arguments(unknown, by_name.get(args.command, parser))
    args.typed = argv
    if args.no_color:
        ui.forbid_color()
    ui.show_wide(args.wide)
    if args.command is None:
        parser.print_help()
        return 0
    return int(args.run(args))


def _check_verb(argv: Sequence[str], known: Sequence[str] | dict[str, argparse.ArgumentParser]) -> None:
    """Refuse an unknown command with the nearest names; argparse would list every command."""
    verb = next((word for word in argv if not word.startswith("-")), None)
    if verb is not None and verb not in known:
        raise UsageError(
            f"There is no command {verb!r}.", candidates=nearest(verb, known), hint="See all of them: regatta --help"
        )


def _refuse_arguments(unknown: Sequence[str], parser: argparse.ArgumentParser) -> NoReturn:
    word = unknown[0].partition("=")[0]
    options = [option for action in parser._actions for option in action.option_strings]
    candidates = nearest(word, options) if word.startswith("-") else ()
    raise UsageError(f"{parser.prog} does not take {word!r}.", candidates=candidates, hint=f"See: {parser.prog} --help")
