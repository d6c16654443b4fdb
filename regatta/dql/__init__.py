"""DQL: queries over the versions of a repository, and from them new networks and trained models.

    parse.py, grammar.lark    text to tree (tree.py), with errors that show the place
    selectors.py              which layers of a network a text such as "conv[1,3,5]" names
    templates.py              what a layer must be, or which layer is made: POOL("MAX")

Enters: the text of a query, parameters, and a repository. Leaves: rows, new versions, or a run. Everything is pure up
to the operators, which read and write the repository: a query is bound and checked before anything is written.
"""
