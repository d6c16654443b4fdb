"""DQL: queries over the versions of a repository, and from them new networks and trained models.

    parse.py, grammar.lark    text to tree (tree.py), with errors that show the place
    selectors.py              which layers of a network a text such as "conv[1,3,5]" names
    templates.py              what a layer must be, or which layer is made: POOL("MAX")
    schema.py                 the tables and attributes that queries can name
    bind/                     tree to bound query (bound.py): names and types
    rewrite.py                bound query to a simpler one
    sql/                      a bound select to one statement of SQLite
    run.py                    the whole pipeline, and its operators
    relation.py               Relation: the rows of a query, read when they are needed
    arrow.py                  rows as a table of Arrow, and in a file of Parquet
    saved_queries.py          queries that are kept under a name
    completion.py             what could follow the beginning of a query

Enters: the text of a query, parameters, and a repository. Leaves: rows, new versions, or a run. Everything is pure up
to the operators, which read and write the repository: a query is bound and checked before anything is written.

A kind of query has three parts: a function (binder, tree) -> bound query in `bind.BODIES`, an operator
(context, bound query) -> versions in `run.OPERATORS`, and a description for `explain` in `run.PLANS`.
"""
