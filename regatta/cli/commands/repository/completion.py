"""`regatta completion bash|zsh|fish`: completes commands, options, and names of runs, configurations and versions."""

from __future__ import annotations

import argparse

from regatta.cli import ui
from regatta.paths import JOURNAL

INSTALL = {
    "bash": 'eval "$(regatta completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(regatta completion zsh)" in ~/.zshrc, after compinit',
    "fish": "regatta completion fish > ~/.config/fish/completions/regatta.fish",
}
# A shell lists runs by itself, and the configurations of the runs that the command line names. Names and tags of
# versions are in the catalog, which takes calls of regatta.
CONFIGS = 's/^{"event": *"config",[^{]*"config": *"\\([^"]*\\)".*/\\1/p'
RUNS = f"""
_regatta_runs_folder() {{
  local dir=$PWD
  while [ ! -d "$dir/.regatta/runs" ] && [ -n "$dir" ]; do dir=${{dir%/*}}; done
  printf '%s' "$dir/.regatta/runs"
}}
_regatta_run_names() {{ command ls "$(_regatta_runs_folder)" 2>/dev/null; }}
_regatta_config_names() {{
  local run
  for run in "$@"; do
    [ -n "$run" ] && command sed -n '{CONFIGS}' "$(_regatta_runs_folder)/$run/{JOURNAL}" 2>/dev/null
  done
}}
"""
VERSIONS = "command regatta list --names 2>/dev/null; command regatta tag --names 2>/dev/null"
PREAMBLE = {
    "bash": f"""{RUNS}
_regatta_runs() {{ compgen -W "$(_regatta_run_names)" -- "$1"; }}
_regatta_configs() {{ compgen -W "$(_regatta_config_names "${{COMP_WORDS[@]}}")" -- "$1"; }}
_regatta_versions() {{ compgen -W "$({VERSIONS})" -- "$1"; }}
_regatta_names() {{ _regatta_versions "$1"; _regatta_runs "$1"; }}
complete -o filenames -F _shtab_regatta dlv
""",
    "zsh": f"""{RUNS}
_regatta_runs() {{ compadd -- ${{(f)"$(_regatta_run_names)"}} }}
_regatta_configs() {{ compadd -- ${{(f)"$(_regatta_config_names $words)"}} }}
_regatta_versions() {{ compadd -- ${{(f)"$({VERSIONS})"}} }}
_regatta_names() {{ _regatta_versions; _regatta_runs }}
""",
    "fish": f"""
function _regatta_runs_folder
  set -l dir $PWD
  while test ! -d "$dir/.regatta/runs"; and test -n "$dir"
    set dir (string replace -r '/[^/]*$' '' -- $dir)
  end
  echo "$dir/.regatta/runs"
end
function _regatta_runs
  command ls (_regatta_runs_folder) 2>/dev/null
end
function _regatta_configs
  for run in (commandline -opc)
    command sed -n '{CONFIGS}' (_regatta_runs_folder)/$run/{JOURNAL} 2>/dev/null
  end
end
function _regatta_versions
  {VERSIONS}
end
function _regatta_names
  _regatta_versions; _regatta_runs
end
complete -c dlv -w regatta
""",
}
RUN_OR_VERSION = (("delete", "names"), ("rename", "name"))  # arguments that name a run or versions
NAME, HELP = "completion", "print a completion script for your shell"
DESCRIPTION = "Print a script that completes commands, options and names in a shell. To install it: " + "; ".join(
    f"{shell}: {line}" for shell, line in INSTALL.items()
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=tuple(INSTALL), help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    ui.write(completion_script(args.shell))
    return 0


def completion_script(shell: str) -> str:
    """The script for a shell, generated from the parser."""
    import shtab

    from regatta.cli.main import build_parser

    parser, verbs = build_parser()
    by_metavar = {
        "RUN": _function("_regatta_runs"),
        "CONFIG": _function("_regatta_configs"),
        "VERSION": _function("_regatta_versions"),
        "FILE": shtab.FILE,
        "FILE|RUN": shtab.FILE,
        "PATH": shtab.FILE,
        "FOLDER": shtab.DIRECTORY,
    }
    for name, action in ((name, action) for name, verb in verbs.items() for action in verb._actions):
        if (name, action.dest) in RUN_OR_VERSION:
            action.complete = _function("_regatta_names")  # type: ignore[attr-defined]
        elif action.metavar in by_metavar:
            action.complete = by_metavar[action.metavar]  # type: ignore[attr-defined]
    return shtab.complete(parser, shell, preamble=PREAMBLE[shell])


def _function(name: str) -> dict[str, str]:
    return {"bash": name, "zsh": name, "fish": f"({name})"}
