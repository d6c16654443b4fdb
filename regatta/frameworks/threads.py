"""How many threads a process computes with, and what else is settled before a framework computes for the first time.

The frameworks read it from the environment: TensorFlow and JAX when they first compute, PyTorch when it is imported.
So no framework has to be imported here; where PyTorch is loaded already, it is told.
"""

from __future__ import annotations

import os
import sys

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "PJRT_NPROC",  # the pool of XLA on the CPU
    "NPROC",  # the same, of older versions
)
_ONE_AT_A_TIME = "TF_NUM_INTEROP_THREADS"
_XLA = "XLA_FLAGS"
_SERIAL = "--xla_cpu_multi_thread_eigen=false"


def limit(threads: int) -> None:
    """Let every framework compute with so many threads in this process."""
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    os.environ[_ONE_AT_A_TIME] = "1"
    flags = os.environ.get(_XLA, "")
    if threads == 1 and "xla_cpu_multi_thread_eigen" not in flags:
        os.environ[_XLA] = f"{flags} {_SERIAL}".strip()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def set_worker_defaults() -> None:
    """Make a worker add up in the same order each time, and keep TensorFlow's notices out of its log."""
    os.environ.setdefault("TF_DETERMINISTIC_OPS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def count() -> int:
    """The number of threads that models are trained with in this process."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    limits = (os.environ.get("OMP_NUM_THREADS", ""), os.environ.get("TF_NUM_INTRAOP_THREADS", ""))
    return next((int(text) for text in limits if text.isdigit() and int(text)), os.cpu_count() or 1)
