"""The command line: data goes to stdout, messages go to stderr.

    main.py         the parser, and the exit code of each error
    arguments.py    arguments that several commands share
    commands/       one file for each verb, in folders: runs, versions, repository
    load_sweep.py   runs a user's Python file to find its sweep
    demo_sweep.py   the program of `regatta demo`
    output/         live display, tables, JSON documents, lineage graphs
    ui.py           the only module that prints

It reaches runs through `regatta.run`, `regatta.sweep` and `regatta.journal`, and knows nothing about workers.
Commands import what they need when they run, so `regatta --help` imports neither torch nor numpy.
"""
