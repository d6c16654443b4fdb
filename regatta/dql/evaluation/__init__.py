"""Evaluate: what a query selects or makes is trained as one sweep, with the settings of a config file.

    settings.py         the settings by name: their types, defaults and template
    config_file.py      a config file as settings: TOML, YAML, JSON, or Python with a `sweep`
    datasets.py         the data sets that a config names
    vary.py             which values are tried: axes, spaces, and the search over them
    keep.py             keep top(5, m["loss"], 100), keep where m["accuracy"] > 0.9 after 3 epochs
    bound_evaluate.py   the query with all names bound
    bind_evaluate.py    tree to bound query
    start_models.py     the networks and weights that are trained, in files
    operators.py        the sweep that is launched, its versions, and what `explain` says
    result.py           the table of a run: model, values, metric, kept or stopped, version

Enters: a bound query and a repository. Leaves: a run. Only operators.py and what it calls read and write files.
"""
