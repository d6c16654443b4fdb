"""Results are bitwise the same only for the same number of threads: one here, as in the workers of the tests.

TensorFlow and JAX read it when they first compute, which is after every test has been collected.
"""

from regatta.frameworks import threads

threads.limit(1)
threads.settle()
