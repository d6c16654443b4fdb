"""Reads the sweep that a run's folder holds. A run made by an earlier version names classes where they were then.

Only for folders of one's own runs, and for bytes from one's own controller: a pickle is code.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

# Where the classes of a pickled sweep were in earlier versions, and where they are now.
_MOVED = {
    "regatta.engine.events": "regatta.engine.messages",
    "regatta.data.sharing.settings": "regatta.data.sharing",
    "regatta.frameworks.jax_state": "regatta.frameworks.jax.state",
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(_MOVED.get(module, module), name)


def unpickle(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()
