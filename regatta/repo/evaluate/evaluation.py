"""From a version and data to labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regatta.errors import UsageError
from regatta.network.graph import Network
from regatta.network.torch.to_torch import outputs
from regatta.repo.catalog.records import Records, Version
from regatta.repo.evaluate.evaluated_network import evaluated_network, inputs_for, targets_for
from regatta.repo.evaluate.progress import Answers, ahead, progress
from regatta.repo.evaluate.progressive_weights import ProgressiveWeights
from regatta.repo.evaluate.result import Evaluation, Stage
from regatta.repo.repo import Repo

MAX_PLANES = 8


def evaluate(
    repo: Repo,
    version: Version,
    x: Any,
    y: Any = None,
    *,
    precision: str | int = "auto",
    top_k: int = 1,
    snapshot: int | str | None = None,
    budget: float | None = None,
) -> Evaluation:
    wanted = _checked_precision(precision)
    _check_numbers(top_k, budget)
    network = evaluated_network(repo, version)
    weights = repo.weights(version, snapshot)
    stored = any(member.id for member in weights.members.values())
    weights_read = ProgressiveWeights(weights, repo.store if stored else None, network)
    inputs = inputs_for(network, x, weights_read.is_wide)
    targets = targets_for(y, len(inputs))
    answers, fallback = _answers(network, weights_read, inputs, wanted, top_k, budget)
    certain = answers.stage >= 0
    return Evaluation(
        version=version.reference,
        precision=str(precision),
        top_k=top_k,
        labels=answers.labels[:, 0] if top_k == 1 else answers.labels,
        certain=certain,
        stage=answers.stage,
        stages=Records(answers.stages),
        bytes_read=weights_read.bytes_read,
        bytes_full=weights_read.bytes_full,
        accuracy=_accuracy(answers.labels, targets),
        fallback=fallback,
    )


def _answers(
    network: Network,
    weights_read: ProgressiveWeights,
    x: NDArray[Any],
    precision: str | int,
    top_k: int,
    budget: float | None,
) -> tuple[Answers, str | None]:
    if precision == "full":
        answers = Answers(np.zeros((len(x), top_k), np.int64), np.full(len(x), -1, np.int64))
        _compute(network, weights_read, x, top_k, answers)
        return answers, None
    planes = precision if isinstance(precision, int) else None
    answers, reason = progress(network, weights_read, x, top_k, planes, budget)
    exact = not weights_read.unread  # all planes have been read
    if len(answers.open) and (reason is not None or exact or (planes is None and budget is None)):
        _compute(network, weights_read, x, top_k, answers)
    return answers, reason


def _compute(network: Network, weights_read: ProgressiveWeights, x: NDArray[Any], top_k: int, answers: Answers) -> None:
    """Compute the labels that are still open with the model and all its weights."""
    left = answers.open
    values = outputs(network, weights_read.values(), x[left])
    answers.labels[left] = ahead(values, top_k) if len(left) else answers.labels[left]
    answers.stage[left] = len(answers.stages)
    answers.stages.append(Stage("all planes", weights_read.bytes_read, len(left), computed=len(left)))


def _accuracy(labels: NDArray[np.int64], targets: NDArray[np.int64] | None) -> float | None:
    if targets is None or not len(targets):
        return None
    return float((labels == targets[:, None]).any(axis=1).mean())


def _checked_precision(precision: str | int) -> str | int:
    if isinstance(precision, str) and precision.isdecimal():
        precision = int(precision)
    number = isinstance(precision, int) and not isinstance(precision, bool)
    if precision in ("auto", "full") or (number and 1 <= int(precision) <= MAX_PLANES):
        return precision
    raise UsageError(
        f"The precision is {precision!r:.100}.",
        hint=f"It is auto, full, or the number of leading bytes of each weight, 1 to {MAX_PLANES}.",
    )


def _check_numbers(top_k: Any, budget: Any) -> None:
    if not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1:
        raise UsageError(f"The number of best classes is {top_k!r:.100}; 1 or more are expected.")
    if budget is not None and not (isinstance(budget, int | float) and 0 <= budget <= 1):
        raise UsageError(f"The budget is {budget!r:.100}; a share of the bytes between 0 and 1 is expected.")
