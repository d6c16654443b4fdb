"""PyTorch tensors from the bits that the store returns, including types that NumPy lacks.

PyTorch is imported only when a caller asks for its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from regatta.store.format.dtypes import BY_LIBRARY_NAME
from regatta.store.format.tensor_id import as_tensor

if TYPE_CHECKING:
    import torch

_LIBRARY_NAMES = {ours: theirs for theirs, ours in BY_LIBRARY_NAME.items()}


def torch_dtype(name: str) -> torch.dtype:
    """PyTorch's type for the store's name of it."""
    import torch

    found: torch.dtype = getattr(torch, _LIBRARY_NAMES[name])
    return found


def torch_tensors(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Arrays and Bits, by name, as tensors; they share memory where they can be written to."""
    import torch

    found: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        tensor = as_tensor(name, value)
        words = tensor.words.view(np.uint8)
        flat = torch.from_numpy(words if words.flags.writeable else words.copy())
        found[name] = flat.view(torch_dtype(tensor.dtype.name)).reshape(tensor.shape)
    return found
