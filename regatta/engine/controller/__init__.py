"""The controller of a run: the event loop and its parts.

runner.py             the loop: takes events, asks the hop scheduler, assigns units
trials.py             Trial: what is wanted of a configuration, and how far it is
scheduled.py          what the scheduler treats as one model: a trial, or a pack of trials
state_files.py        which state file a unit reads and writes
run_log.py            writes journal records and notifies listeners
partition_owners.py   which worker holds which partition
watchdog.py           time limits of units, and waiting for disk space
control_server.py     requests from people and from workers that join
signals.py            Ctrl-C and SIGTERM
"""
