"""One verb a file. Each has a NAME, `add_arguments(parser)`, which says what it takes, and `run(args)`, which does it.

What enters are parsed arguments, what leaves is an exit code; a deliberate error is raised, not printed. The heavy
imports are inside `run`: the parser is built for every call, even for `--help`.
"""
