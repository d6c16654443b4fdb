"""Which configurations to train: a search hears reports and answers with actions.

    base.py      the protocol, and the words that a search and a run exchange
    spaces.py    choice, uniform, loguniform, integers: where the values of an axis come from
    grid.py      all combinations
    random.py    some, drawn
    configs.py   those that you list

A search knows neither the engine nor the clock, and draws nothing but from the seeds it is given.
"""

from regatta.search.base import Action, Goal, Report, Search, Stop, Train
from regatta.search.configs import configs
from regatta.search.grid import grid
from regatta.search.random import random
from regatta.search.spaces import choice, integers, loguniform, uniform

__all__ = [
    "Action",
    "Goal",
    "Report",
    "Search",
    "Stop",
    "Train",
    "choice",
    "configs",
    "grid",
    "integers",
    "loguniform",
    "random",
    "uniform",
]
