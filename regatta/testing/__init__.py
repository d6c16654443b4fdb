"""Contract suites: what every implementation of a protocol must pass, as pytest classes to inherit.

    frameworks.py   state out and in without loss, nothing random leaks, evaluation changes nothing
    workers.py      tasks in, events out; failures, deaths and durable states are kept apart
    search.py       deterministic, always in bounds, the same again from what it heard
    store.py        tensors come back bit for bit, however they are kept

A suite knows the protocol alone; the class that inherits it names the implementation. They need pytest, which the
`dev` extra brings, and are meant for third parties' frameworks, pools and searches as well as for our own.
"""
