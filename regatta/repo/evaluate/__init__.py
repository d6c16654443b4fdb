"""Progressive evaluation: the labels that full precision gives, from as few bytes of the weights as that takes.

    evaluation.py   evaluate: from a version and data to an Evaluation
    subject.py      the network up to its last numbers, and the data as it takes them
    reading.py      the weights as far as they have been read, plane by plane, and what that cost
    progress.py     bounds, the next plane of the tensor that matters most, and again
    result.py       Evaluation: labels, what was certain when, bytes
    files.py        data from files

The bounds are in regatta/network/bounds. What no bound decides is computed with all weights.
"""

from regatta.repo.evaluate.evaluation import evaluate
from regatta.repo.evaluate.files import read_data
from regatta.repo.evaluate.result import Evaluation, Stage

__all__ = ["Evaluation", "Stage", "evaluate", "read_data"]
