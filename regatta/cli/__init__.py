"""The command line: arguments enter, data leaves on stdout and messages on stderr.

    main.py      the parser, and what exit code becomes of which error
    commands/    one verb a file: what it takes, and what it does with a sweep or a run
    loading.py   a user's Python file, executed to find the sweep that it defines
    display.py   a run while it goes on
    tables.py    a run that is looked at: leaderboard, resources
    versions.py  versions in lists and logs;  lineage.py  what came out of what, drawn
    documents.py the same as JSON, with keys that stay
    figures.py   numbers for people
    ui.py        the only module that prints

It reaches runs through `regatta.run` and `regatta.sweep`, and knows nothing of workers. `regatta --help` imports
neither torch nor numpy:
commands import what they need when they run.
"""
