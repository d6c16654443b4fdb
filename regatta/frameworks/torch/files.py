"""Reads and writes state dicts in PyTorch's own files. Only tensors and plain values are unpickled."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regatta.durable import replacing
from regatta.errors import DataError
from regatta.store.torch_tensors import torch_tensors

STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params", "ema")
EPOCH_KEYS = ("epoch", "epochs")


@dataclass(frozen=True)
class StateDict:
    """The tensors of a model; in a larger file also their key, the names that were left out, and the epoch."""

    tensors: dict[str, torch.Tensor]
    under: str | None
    left_out: tuple[str, ...]
    epoch: int | None


def read_state_dict(path: Path, max_bytes: int) -> StateDict:
    """The state dict of a file whose archive was checked; its tensors may take at most `max_bytes`."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"The file holds more than tensors and plain values, or is damaged: {_first_sentence(error)}",
            place=str(path),
            hint="Only a state dict is read: torch.save(model.state_dict(), ...), or safetensors.",
        ) from error
    under, tensors = _state_dict(content, path)
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            raise DataError(
                f"The tensor {name!r:.200} is {tensor.layout}; dense tensors can be stored.", place=str(path)
            )
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
    if sum(sizes.values()) > max_bytes:
        raise DataError(f"The tensors claim {sum(sizes.values())} bytes; the file holds {max_bytes}.", place=str(path))
    others = [name for name in content if under is not None and name not in (under, *EPOCH_KEYS)]
    inside = content if under is None else content[under]
    left_out = [*others, *(f"{name!s:.80}" for name in inside if name not in tensors)]
    return StateDict(tensors, under, tuple(map(str, left_out)), _epoch(content) if under is not None else None)


def write_state_dict(path: Path, values: Mapping[str, Any]) -> None:
    """Arrays and Bits, by name, as a file that `torch.load` reads; it appears whole or not at all."""
    with replacing(path, durable_name=False) as written, written.open("wb") as file:
        torch.save({name: tensor.clone() for name, tensor in torch_tensors(values).items()}, file)


def _state_dict(content: object, path: Path) -> tuple[str | None, dict[str, torch.Tensor]]:
    if isinstance(content, Mapping):
        found = _tensors(content)
        if found:
            return None, found
        for place in [*STATE_DICT_KEYS, *content]:
            if isinstance(content.get(place), Mapping) and (found := _tensors(content[place])):
                return str(place), found
    raise DataError(
        f"There are no tensors by name in the file, but a {type(content).__name__}.",
        place=str(path),
        hint="A state dict is meant: torch.save(model.state_dict(), ...).",
    )


def _tensors(content: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, torch.Tensor)}


def _epoch(content: Mapping[Any, Any]) -> int | None:
    found = (content.get(name) for name in EPOCH_KEYS)
    return next((value for value in found if type(value) is int and 0 <= value < 2**31), None)


def _first_sentence(error: Exception) -> str:
    """The first sentence of an error, without colour codes."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    line = next((line.strip() for line in plain.splitlines() if line.strip()), type(error).__name__)
    return line.split(". ")[0][:200]
