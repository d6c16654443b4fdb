"""How many threads a process computes with, and other settings that frameworks read before they compute.

Frameworks read them from the environment: TensorFlow and JAX at their first computation, PyTorch at its import. So no
framework has to be imported here. If PyTorch is loaded already, its own function is called.
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
    "NPROC",  # the same, for older versions
)
_CONCURRENT_OPERATIONS = "TF_NUM_INTEROP_THREADS"
_XLA_FLAGS = "XLA_FLAGS"
_SINGLE_THREADED = "--xla_cpu_multi_thread_eigen=false"


def limit_threads(threads: int) -> None:
    """Let every framework in this process compute with this number of threads, and in a fixed order."""
    os.environ.setdefault("TF_DETERMINISTIC_OPS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no notices in the logs of workers
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    os.environ[_CONCURRENT_OPERATIONS] = "1"
    flags = os.environ.get(_XLA_FLAGS, "")
    if threads == 1 and "xla_cpu_multi_thread_eigen" not in flags:
        os.environ[_XLA_FLAGS] = f"{flags} {_SINGLE_THREADED}".strip()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def count() -> int:
    """The number of threads that models are trained with in this process."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    limits = (os.environ.get("OMP_NUM_THREADS", ""), os.environ.get("TF_NUM_INTRAOP_THREADS", ""))
    return next((int(text) for text in limits if text.isdigit() and int(text)), os.cpu_count() or 1)
