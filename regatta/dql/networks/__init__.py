"""Slice and construct: new networks from those of selected versions, with their weights.

    bind_networks.py     tree to bound query (bound_networks.py), with errors that show the place
    layer_sets.py        which layers of a network a selector names, and where its steps lead
    variants.py          mutations of one network, in every combination of their options
    derived_models.py    derive: the models that a query makes, with weights that are made when they are read
    commit_models.py     versions of them, with their source as parent and the query as metadata
    operators.py         what runs a bound query and makes versions, and what says what it would make

Enters: a bound query, a repository, and the versions that its select finds. Leaves: derived models, or versions. All
networks are made and their shapes checked before the first version is written.
"""
