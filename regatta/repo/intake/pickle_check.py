"""Follows a pickle without executing it, and refuses what `torch.load(weights_only=True)` would let through.

That mode executes no foreign code, but it may be asked for any amount of memory (`torch.FloatTensor(10**12)`), and for
the hash of a tuple that holds the same tuple twice, forty times over. Only calls that a checkpoint needs are allowed
here, and the elements of nested tuples are counted.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regatta.errors import DataError
from regatta.repo.intake.limits import MAX_NESTED, check_limit

CALLS = {
    "collections OrderedDict", "collections Counter", "torch Size", "torch device", "_codecs encode",
    "builtins set", "__builtin__ set", "builtins complex", "__builtin__ complex",
    "torch.serialization _get_layout", "torch.nn.parameter Parameter", "torch._tensor _rebuild_from_type_v2",
    *(f"torch._utils _rebuild_{kind}" for kind in (
        "parameter", "parameter_with_state", "tensor", "tensor_v2", "tensor_v3", "sparse_tensor", "qtensor",
    )),
}  # fmt: skip
CALLS_ANOTHER = "torch._tensor _rebuild_from_type_v2"  # its first argument
_STORED, _FETCHED = ("PUT", "BINPUT", "LONG_BINPUT"), ("GET", "BINGET", "LONG_BINGET")
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True)
class _Item:
    """A value on the stack: the elements in it if it is a tuple, the name of a global, and a tuple's first element."""

    size: int = 1
    name: str = ""
    first: str = ""


_MARK, _PLAIN = _Item(0), _Item()


def check_pickle(content: bytes, path: Path) -> None:
    try:
        _Follower(path).follow(content)
    except (ValueError, IndexError, KeyError) as error:
        raise DataError(f"The file is damaged: {error!s:.200}.", place=str(path)) from error


class _Follower:
    """The stack and the memo of a pickle, as far as sizes and names go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack: list[_Item] = []
        self._memo: dict[int, _Item] = {}

    def follow(self, content: bytes) -> None:
        for code, argument, _ in pickletools.genops(content):
            self._step(code, argument)

    def _step(self, code: pickletools.OpcodeInfo, argument: object) -> None:
        stack, memo, name = self._stack, self._memo, code.name
        if name in _STORED:
            memo[int(str(argument))] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in _FETCHED:
            stack.append(memo[int(str(argument))])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "GLOBAL":
            stack.append(_Item(name=str(argument)))
        elif name == "TUPLE":
            self._push_tuple(list(self._above_mark()))
        elif name in _TUPLES:
            count = _TUPLES[name]
            self._push_tuple([stack.pop() for _ in range(count)][::-1])
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            self._check_call(function.name)
            if function.name == CALLS_ANOTHER:
                self._check_call(arguments.first)
            stack.append(_PLAIN)
        else:
            self._other(code)

    def _push_tuple(self, items: list[_Item]) -> None:
        size = 1 + sum(item.size for item in items)
        check_limit("elements in nested tuples", size, MAX_NESTED, self.path)
        self._stack.append(_Item(size, first=items[0].name if items else ""))

    def _above_mark(self) -> Iterator[_Item]:
        """Everything above the last mark, which is looked for from the top: the stack may be long."""
        found: list[_Item] = []
        while (item := self._stack.pop()) is not _MARK:
            found.append(item)
        return reversed(found)

    def _check_call(self, name: str) -> None:
        if name not in CALLS:
            raise DataError(
                f"The file holds more than tensors and plain values: it calls {name or 'what it computes':.100}.",
                place=str(self.path),
                hint="Only a state dict is read: torch.save(model.state_dict(), ...), or safetensors.",
            )

    def _other(self, code: pickletools.OpcodeInfo) -> None:
        """Take from the stack, and put there, what the table of opcodes says."""
        taken = [item.name for item in code.stack_before]
        if "mark" in taken:
            self._above_mark()
            taken = taken[: taken.index("mark")]
        left = [self._stack.pop() for _ in taken]
        for place, _ in enumerate(code.stack_after):
            # A list or dict that something is put into stays what it was.
            self._stack.append(left[len(taken) - 1] if place == 0 and taken and code.name in _KEEPING else _PLAIN)


_KEEPING = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD", "ADDITEMS")
