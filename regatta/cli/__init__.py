"""The command line: data goes to stdout, messages go to stderr.

It reaches runs through `regatta.run`, `regatta.sweep` and `regatta.journal`, and knows nothing about workers.
Commands import what they need when they run, so `regatta --help` imports neither torch nor numpy.
"""
