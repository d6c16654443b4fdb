"""Targets that a loss cannot compare with the outputs of a model are refused before anything is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from regatta import Dataset
from regatta.dql.evaluation.start_models import StartModel, check_targets
from regatta.errors import UsageError
from regatta.network import from_torch

CLASSIFIER = nn.Sequential(nn.Linear(4, 3))
ONE_NUMBER = nn.Sequential(nn.Linear(4, 1))
SEGMENTATION = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 1))
ROWS = 12


def targets(kind: str, *shape: int) -> np.ndarray:
    return np.zeros((ROWS, *shape), kind)


@pytest.mark.parametrize(
    ("loss", "model", "given", "fits"),
    [
        ("cross_entropy", CLASSIFIER, targets("int64"), True),
        ("cross_entropy", CLASSIFIER, targets("float32", 3), True),  # a share of each class
        ("cross_entropy", CLASSIFIER, targets("float32"), False),
        ("cross_entropy", CLASSIFIER, targets("int64", 1), False),
        ("cross_entropy", SEGMENTATION, targets("int64", 2, 2), True),
        ("cross_entropy", SEGMENTATION, targets("int64", 2, 3), False),
        ("nll", CLASSIFIER, targets("int64"), True),
        ("nll", CLASSIFIER, targets("float32", 3), False),
        ("mse", CLASSIFIER, targets("float32", 3), True),
        ("mse", ONE_NUMBER, targets("float32", 1), True),
        ("mse", ONE_NUMBER, targets("float32"), False),  # PyTorch would compare every output with every target
        ("mse", ONE_NUMBER, targets("int64", 1), False),
        ("binary_cross_entropy", CLASSIFIER, targets("float32", 3), True),
    ],
)
def test_targets_fit_or_are_refused(loss: str, model: nn.Module, given: np.ndarray, fits: bool, tmp_path: Path) -> None:
    network = from_torch(model, torch.zeros(2, 4))
    models = [StartModel("key", "name", "base", network, model.state_dict)]
    data = Dataset.from_arrays(np.zeros((ROWS, 4), "float32"), given, partitions=2, directory=tmp_path)
    if fits:
        check_targets(models, data, loss)
        return
    with pytest.raises(UsageError, match=rf"The loss {loss} cannot compare outputs of name of the shape \("):
        check_targets(models, data, loss)
