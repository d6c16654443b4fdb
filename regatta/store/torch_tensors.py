"""PyTorch tensors from the bits that the store returns, including types that NumPy lacks.

PyTorch is imported only when a caller asks for its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from regatta.store.format.tensor_id import as_tensor

if TYPE_CHECKING:
    import torch

_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "C128": "complex128",
}


def torch_tensors(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Arrays and Bits, by name, as tensors; they share memory where they can be written to."""
    import torch

    found: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        tensor = as_tensor(name, value)
        words = tensor.words.view(np.uint8)
        flat = torch.from_numpy(words if words.flags.writeable else words.copy())
        found[name] = flat.view(getattr(torch, _NAMES[tensor.dtype.name])).reshape(tensor.shape)
    return found
