"""Each member's own random streams: Python's, NumPy's and PyTorch's on the host and on the device."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class Randomness:
    """The states of all random generators of one member; `active` puts them into the process's generators."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device = device
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Seed all streams, as `random.seed`, `numpy.random.seed` and `torch.manual_seed` do."""
        self.python: Any = random.Random(seed).getstate()
        self.numpy: Any = np.random.RandomState(seed % 2**32).get_state()
        self.host = torch.Generator()
        self.host.manual_seed(seed)
        self.on_device = None
        if self.device.type == "cuda":
            self.on_device = self._default().clone_state()
            self.on_device.manual_seed(seed)

    @contextmanager
    def active(self) -> Iterator[None]:
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.host.get_state())
        try:
            with self.active_on_device():
                yield
        finally:
            self.python, self.numpy = random.getstate(), np.random.get_state()
            self.host.set_state(torch.get_rng_state())
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_rng_state(before[2])

    @contextmanager
    def active_on_device(self) -> Iterator[None]:
        """The device's default generator uses this member's state, also in graphs that are captured inside."""
        if self.on_device is None:
            yield
            return
        default = self._default()
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(self.on_device)
        try:
            yield
        finally:
            default.graphsafe_set_state(before)

    def mark(self) -> tuple[Any, ...]:
        """The positions of all streams, to compare with or to go back to."""
        offset = None if self.on_device is None else self.on_device.get_state()
        return self.python, self.numpy, self.host.get_state(), offset

    def go_back(self, mark: tuple[Any, ...]) -> None:
        self.python, self.numpy, host, offset = mark
        self.host.set_state(host)
        if self.on_device is not None:
            self.on_device.set_state(offset)

    def state_dict(self) -> dict[str, Any]:
        """The positions of all streams, as numbers and tensors that `torch.save` can write."""
        kind, words, *rest = self.numpy
        found = {"python": self.python, "numpy": (kind, torch.from_numpy(words.astype(np.int64)), *rest)}
        device = {} if self.on_device is None else {"device": self.on_device.get_state().clone()}
        return {**found, "host": self.host.get_state().clone(), **device}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there. A stream that the state does not have, as on another device, stays as it is."""
        kind, words, *rest = state["numpy"]
        self.python, self.numpy = state["python"], (kind, words.numpy().astype(np.uint32), *rest)
        self.host.set_state(state["host"])
        if self.on_device is not None and "device" in state:
            self.on_device.set_state(state["device"])

    def drew_on_host(self, since: tuple[Any, ...]) -> bool:
        """Whether random numbers were drawn on the host since a mark: a captured step cannot draw them again."""
        same = self.python == since[0] and _comparable(self.numpy) == _comparable(since[1])
        return not same or not torch.equal(self.host.get_state(), since[2])

    def differs(self, mark: tuple[Any, ...]) -> bool:
        """Whether any stream differs from a mark."""
        moved = self.on_device is not None and not torch.equal(self.on_device.get_state(), mark[3])
        return moved or self.drew_on_host(mark)

    def _default(self) -> torch.Generator:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = self.device.index if self.device.index is not None else torch.cuda.current_device()
        return torch.cuda.default_generators[index]


class ProcessStreams:
    """The generators of the process, which belong to no member: code that draws from them is trained alone."""

    def __init__(self) -> None:
        self._before = _process_streams()

    def moved(self) -> bool:
        python, numpy, host = self._before
        now = _process_streams()
        return python != now[0] or _comparable(numpy) != _comparable(now[1]) or not torch.equal(host, now[2])

    def put_back(self) -> None:
        python, numpy, host = self._before
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(host)


def _process_streams() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _comparable(state: Any) -> tuple[Any, ...]:
    """NumPy's state with its array as bytes, because arrays are compared element by element."""
    return state[0], state[1].tobytes(), *state[2:]
