"""A bound select as one statement of SQLite, with bound parameters.

    select.py         the clauses, sources and order of rows
    expressions.py    values and conditions, one function per kind of bound part
    indexed.py        conditions on metrics and hyperparameters that an index answers
    layers.py         selectors and paths of layers, as conditions on the tables of nodes and edges
    statement.py      what a statement consists of: text, parameters, functions
    functions.py      functions in Python that the statements call
    execute.py        runs a statement and reads its rows
    explain.py        the statement, SQLite's plan for it, and the rows expected

Models are the keys of their versions, times and durations are seconds. Values of type `any` are JSON texts, since
SQLite has neither true nor lists. Everything else is what it is in SQLite. Texts of a query never become SQL.
"""
