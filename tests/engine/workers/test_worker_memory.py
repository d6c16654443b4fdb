"""What workers do with memory, in processes of their own: the C library's choices are a process's."""

import subprocess
import sys

import pytest

MODELS = """
import resource, sys
import numpy as np
from regatta.engine.workers.training.device_memory import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
def unit():
    weights = [np.ones(2**18) for _ in range(8)]  # 2 MiB each, as a small model's layers
unit()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    unit()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only the GNU library lets a process choose")
def test_a_unit_reuses_the_memory_that_the_last_one_freed():
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", MODELS, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("keep") < faults("leave") / 10
