"""Which configurations to train: a search receives reports and answers with actions.

    base.py        the protocol of a search: goal, reports and actions
    spaces.py      choice, uniform, loguniform, integers: where the values of an axis come from
    domain.py      all axes together, and which combinations are valid
    grid.py        all combinations
    random.py      random combinations
    configs.py     the configurations that you list
    hyperband.py   successive halving with several trade-offs, all at once
    asha.py        successive halving without a barrier
    pbt.py         population-based training: the better half has mutated children
    mutations.py   step, factor, resample: how a child's value differs from its parent's
    optuna.py      configurations that Optuna's samplers propose
    stopping.py    limits that combine with any search
    keep.py        rules that stop what is not good enough: top(5, "loss", 100)
    predict.py     a forecast of the epochs that a search will ask for

A search knows neither the engine nor the clock. All its random numbers come from the seeds that it is given.
"""

from regatta.search.asha import asha, asha_rungs
from regatta.search.base import Action, Goal, Report, Search, Stop, Train
from regatta.search.configs import configs
from regatta.search.grid import grid
from regatta.search.hyperband import hyperband, hyperband_brackets
from regatta.search.keep import keeping, require, top
from regatta.search.mutations import factor, resample, step
from regatta.search.optuna import optuna
from regatta.search.pbt import pbt
from regatta.search.random import random
from regatta.search.spaces import choice, integers, loguniform, uniform
from regatta.search.stopping import stopping

__all__ = [
    "Action", "Goal", "Report", "Search", "Stop", "Train", "asha", "asha_rungs", "choice", "configs", "factor", "grid",
    "hyperband", "hyperband_brackets", "integers", "keeping", "loguniform", "optuna", "pbt", "random", "require",
    "resample", "step", "stopping", "top", "uniform",
]  # fmt: skip
