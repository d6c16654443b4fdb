"""Results are bitwise the same only for the same number of threads: one here, as in the workers of the tests.

TensorFlow and JAX read it when they first compute, which is after every test has been collected. PyTorch's is left to
the tests that need it.
"""

import torch

from regatta.frameworks import threads

before = torch.get_num_threads()
threads.limit_threads(1)
torch.set_num_threads(before)
