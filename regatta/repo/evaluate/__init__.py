"""Progressive evaluation: the labels of full precision, from as few bytes of the weights as possible.

    evaluation.py           evaluate: from a version and data to an Evaluation
    evaluated_network.py    the network up to its logits, and data in the form that it takes
    progressive_weights.py  weights as far as they have been read, plane by plane, and the bytes read
    progress.py             the loop: bounds, then the next plane of the most important tensors
    result.py               Evaluation: labels, when each became certain, bytes
    files.py                data from files

The bounds are in regatta/network/bounds. Labels that no bound decides are computed with all weights.
"""

from regatta.repo.evaluate.evaluation import evaluate
from regatta.repo.evaluate.files import read_data
from regatta.repo.evaluate.result import Evaluation, Stage

__all__ = ["Evaluation", "Stage", "evaluate", "read_data"]
