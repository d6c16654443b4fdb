"""Pickles the sweep of a run, and unpickles it. Runs of earlier versions refer to classes by their names of that time.

Unpickle only folders of your own runs and bytes from your own controller: a pickle can execute code.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from types import ModuleType
from typing import Any

import cloudpickle

# Modules and classes in pickled sweeps of earlier versions, and their present names.
_MOVED_MODULES = {
    "regatta.engine.events": "regatta.engine.messages",
    "regatta.data.sharing.settings": "regatta.data.sharing",
    "regatta.frameworks.jax_state": "regatta.frameworks.jax.state",
    "regatta.engine.record": "regatta.journal.run_record",
    "regatta.network.from_onnx": "regatta.network.onnx.from_onnx",
    "regatta.network.from_torch": "regatta.network.torch.from_torch",
    "regatta.network.match": "regatta.network.align",
    "regatta.network.reading": "regatta.network.json_form",
    "regatta.network.to_torch": "regatta.network.torch.to_torch",
    "regatta.pack.cuda_graphs.optimizers": "regatta.frameworks.torch.capturable",
    "regatta.pack.optimizers": "regatta.frameworks.torch.capturable",
    "regatta.repo.records": "regatta.repo.catalog.records",
}
_RENAMED_CLASSES = {
    ("regatta.search.asha", "_Rung"): "_AshaRung",
    ("regatta.search.pbt", "_Member"): "_PbtMember",
    ("regatta.search.stopping", "_Course"): "_PatienceState",
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = _MOVED_MODULES.get(module, module)
        return super().find_class(module, _RENAMED_CLASSES.get((module, name), name))


def unpickle(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Functions of a program by value. A module is imported again, also one of a class of its own.

    `torch.backends.cudnn` is such a module, which cloudpickle takes for an object to be copied.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType and sys.modules.get(obj.__name__) is obj:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)


def to_pickle(value: Any) -> bytes:
    """A value with functions of the user, for workers and for the folder of a run."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()
