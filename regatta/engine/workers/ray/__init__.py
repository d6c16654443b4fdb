"""Workers as actors of a Ray cluster.

pool.py                the pool: starts actors, gives them tasks, collects events
actor.py               the actor: a worker's side
session.py             connects to a cluster, or starts one
states.py              model states as object references
storage.py             durable states on an fsspec URL
shared_blocks.py       preprocessed data in Ray's object store
preprocess_worker.py   actors that preprocess data for all workers
"""
