"""What happens inside a unit, the same in every kind of worker.

trainer.py           runs a task: builds or restores the model, trains or evaluates it, saves its state
packs.py             trains the members of a pack
profiler.py          measures a few batches of a new model
partition_cache.py   the partitions that this worker holds, read or preprocessed
model_cache.py       compiled models kept from unit to unit
warm_start.py        a child that begins with its parent's state
unsaved_state.py     finds what a model keeps outside its state
group_member.py      what differs when the worker is a member of a group
device_memory.py     how much memory the device has
error_report.py      errors of the user's functions in words
"""
