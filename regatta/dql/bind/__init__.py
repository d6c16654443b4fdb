"""Tree to bound query: every name gets a meaning and a type, and everything that is wrong is said with its place.

    binder.py         Binder: the variables of a query, its sources, nested and saved queries, errors
    select.py         the clauses of `select`
    expressions.py    values and conditions, one function per kind of tree
    paths.py          m.name, m.metric.loss.best, m["conv*"].next
    types.py          which types go together, and what they are called

Enters: a tree (tree.py), the names of a repository (schema.py) and parameters. Leaves: a bound query (bound.py). It
reads nothing.
"""

from regatta.dql.bind.binder import BODIES, Binder, BoundQuery, bind, bind_condition

__all__ = ["BODIES", "Binder", "BoundQuery", "bind", "bind_condition"]
