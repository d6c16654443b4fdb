"""Reads and writes state dicts in PyTorch's own files. Only tensors and plain values are unpickled."""

from __future__ import annotations

import io
import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regatta.durable import replacing
from regatta.errors import DataError
from regatta.store.format.manifest import ManifestEntry
from regatta.store.torch_tensors import torch_dtype, torch_tensors

STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params", "ema")
EPOCH_KEYS = ("epoch", "epochs")


@dataclass(frozen=True)
class StateDict:
    """The tensors of a model; in a larger file also their key, the names that were left out, and the epoch."""

    tensors: dict[str, torch.Tensor]
    under: str | None
    left_out: tuple[str, ...]
    epoch: int | None

    @property
    def bytes(self) -> int:
        """The bytes of the tensors once each has memory of its own; several names of one whole tensor count once."""
        views = [(t.numel() * t.element_size(), _same_memory(t, n)) for n, t in enumerate(self.tensors.values())]
        return sum({view: size for size, view in views}.values())


def read_state_dict(path: Path, max_bytes: int) -> StateDict:
    """The state dict of a file whose archive was checked; its tensors may take at most `max_bytes`."""
    try:
        # Mapped: a tensor takes memory only while it is read.
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"The file holds more than tensors and plain values, or is damaged: {_first_sentence(error)}",
            place=str(path),
            hint="Only a state dict is read: torch.save(model.state_dict(), ...), or safetensors.",
        ) from error
    under, inside, tensors = _state_dict(content, path)
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            kind = "quantized" if tensor.is_quantized else tensor.layout
            what = kind if tensor.device.type == "cpu" else f"on the device {tensor.device}, without numbers"
            raise DataError(f"The tensor {name!r:.200} is {what}; dense tensors can be stored.", place=str(path))
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
    if sum(sizes.values()) > max_bytes:
        raise DataError(f"The tensors claim {sum(sizes.values())} bytes; the file holds {max_bytes}.", place=str(path))
    others = [name for name in content if under is not None and name not in (under, *EPOCH_KEYS)]
    left_out = tuple(f"{name!s:.80}" for name in [*others, *(name for name in inside if name not in tensors)])
    if under is None:
        return StateDict(tensors, None, left_out, None)
    return StateDict(tensors, str(under), left_out, _epoch(content))


def _same_memory(tensor: torch.Tensor, number: int) -> object:
    """Equal for tensors that are stored without a copy of their own: contiguous views of the same memory."""
    return (tensor.data_ptr(), tensor.shape, tensor.dtype) if tensor.is_contiguous() else number


def write_state_dict(path: Path, members: Mapping[str, ManifestEntry], tensors: Iterable[tuple[str, Any]]) -> None:
    """Write tensors as a file that `torch.load` reads; it appears whole or not at all.

    `members` has the types and shapes, and `tensors` the values in the same order. As in PyTorch's own files, the
    pickle refers to storages by number, and each storage is an entry of the archive. So one value is needed at a time.
    """
    with replacing(path, durable_name=False) as written, written.open("wb") as file:
        archive: Any = torch._C.PyTorchFileWriter(file)
        content = io.BytesIO()
        records = (TensorRecord(str(number), member) for number, member in enumerate(members.values()))
        _StateDictPickler(content, protocol=2).dump(dict(zip(members, records, strict=True)))
        archive.write_record("data.pkl", content.getvalue(), len(content.getvalue()))
        archive.write_record("byteorder", b"little", len(b"little"))
        for number, (name, value) in enumerate(tensors):
            tensor = torch_tensors({name: value})[name]
            archive.write_record(f"data/{number}", tensor.untyped_storage(), tensor.nbytes)
        archive.write_end_of_file()


@dataclass(frozen=True)
class TensorRecord:
    """A tensor to be pickled: the number of its storage, its type and its shape."""

    key: str
    member: ManifestEntry


@dataclass(frozen=True)
class StorageRecord:
    """A storage that the pickle refers to: its class in PyTorch, its number, and the elements of that class in it."""

    kind: type
    key: str
    elements: int


class _StateDictPickler(pickle.Pickler):
    """Pickles TensorRecords in the way of tensors; types without a storage class of their own have untyped storages."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, TensorRecord):
            return NotImplemented
        shape, dtype = value.member.shape, torch_dtype(value.member.dtype)
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        kind = _STORAGES.get(dtype)
        elements = value.member.bytes if kind is None else math.prod(shape)
        storage = StorageRecord(kind or torch.UntypedStorage, value.key, elements)
        hooks: OrderedDict[str, Any] = OrderedDict()
        known = (storage, 0, shape, strides, False, hooks)
        if kind is None:
            return torch._utils._rebuild_tensor_v3, (*known, dtype)
        return torch._utils._rebuild_tensor_v2, known

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, StorageRecord):
            return "storage", value.kind, value.key, "cpu", value.elements
        return None


_STORAGES: dict[torch.dtype, type] = {
    torch.float64: torch.DoubleStorage, torch.float32: torch.FloatStorage, torch.float16: torch.HalfStorage,
    torch.bfloat16: torch.BFloat16Storage, torch.int64: torch.LongStorage, torch.int32: torch.IntStorage,
    torch.int16: torch.ShortStorage, torch.int8: torch.CharStorage, torch.uint8: torch.ByteStorage,
    torch.bool: torch.BoolStorage, torch.complex64: torch.ComplexFloatStorage,
    torch.complex128: torch.ComplexDoubleStorage,
}  # fmt: skip


def _state_dict(content: object, path: Path) -> tuple[object, Mapping[Any, Any], dict[str, torch.Tensor]]:
    """The key of the state dict, all that it holds, and its tensors by name; no key if it is the whole content.

    A checkpoint may hold single tensors beside its state dict, such as the state of a random generator.
    """
    if isinstance(content, Mapping):
        for place in [*STATE_DICT_KEYS, None, *content]:
            part = content if place is None else content.get(place)
            if isinstance(part, Mapping) and (found := _tensors(part)):
                return place, part, found
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
