"""The controller of a run: it takes events of workers, gives them units, and writes the journal.

runner.py             one run from its first record to its last: start or resume, profile, plan, train
settings.py           the arguments of a run
event_loop.py         the loop: events of workers in, units for workers out
trials.py             Trial: what is wanted of a configuration, and how far it is
scheduled_models.py   what the hop scheduler treats as one model: a trial, or a pack of trials
trial_scheduler.py    gives trials to the hop scheduler, in packs or one by one
state_files.py        which state file a unit reads and writes
pending_records.py    records of finished units, until their states are durable
run_log.py            writes journal records and notifies listeners
partition_owners.py   which worker holds which partition, and which takes over those of a lost one
watchdog.py           time limits of units, and pauses while the disk is full
control_server.py     the socket through which users and joining workers reach the controller
requests.py           requests of users: stop, resume, extend, clone
"""
