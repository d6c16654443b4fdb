"""Unpickles the sweep of a run. Runs of earlier versions refer to classes by the names and modules of that time.

Use it only for folders of your own runs and for bytes from your own controller: a pickle can execute code.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

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
