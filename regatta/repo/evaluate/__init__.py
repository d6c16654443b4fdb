"""Progressive evaluation: the labels of full precision, from as few bytes of the weights as possible.

The bounds are in regatta/network/bounds. Labels that no bound decides are computed with all weights.
"""

from regatta.repo.evaluate.evaluation import evaluate
from regatta.repo.evaluate.files import read_data
from regatta.repo.evaluate.result import Evaluation, Stage

__all__ = ["Evaluation", "Stage", "evaluate", "read_data"]
