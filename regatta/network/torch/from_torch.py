"""The network of a PyTorch module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regatta.errors import UsageError
from regatta.network.graph import Network

if TYPE_CHECKING:
    from torch import nn


def from_torch(module: nn.Module, example: Any = None, *, name: str = "") -> Network:
    """The layers of a module and their connections.

    `example` is an input, or a tuple of inputs, with a batch as first axis. It gives shapes. A module whose forward
    depends on values can only be read with one.
    """
    import torch

    from regatta.network.torch.traces import UNTRACEABLE, trace_example, trace_exported, trace_symbolic

    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"from_torch reads a torch.nn.Module, not {type(module).__name__}: {module!r:.80}.")
    inputs = None if example is None else _inputs(example)
    name = name or type(module).__name__
    try:
        return trace_symbolic(module, inputs, name)
    except UNTRACEABLE as error:
        if inputs is None:
            line = next(iter(str(error).splitlines()), type(error).__name__)
            raise UsageError(
                f"{type(module).__name__} cannot be traced without an input: {line[:200]}",
                hint="Give an example input: from_torch(module, example).",
            ) from error
    try:
        return trace_exported(module, inputs, name)
    except UNTRACEABLE:
        return trace_example(module, inputs, name)  # an error here is the module's own


def _inputs(example: Any) -> tuple[Any, ...]:
    import torch

    inputs = tuple(example) if isinstance(example, tuple | list) else (example,)
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"An example input is a tensor or a tuple of tensors, not {type(value).__name__}.")
    return inputs
