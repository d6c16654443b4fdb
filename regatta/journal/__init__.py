"""What a run did: its journal, and everything that is computed from one.

    journal_file.py   one JSON object per line, appended and never changed
    run_record.py     RunRecord: a journal folded into the state of a run, live or past
    accounting.py     where time and bytes went
    trace.py          units as rows and as a Chrome trace
    time_left.py      how much training is left
    analysis.py       what a run took beside what its plan expected
    lock.py           one controller per run
    unpickle.py       the sweep that a run has saved, also of an earlier version

`repo`, `sinks`, `cli` and `web` read runs through this package. It imports neither `engine` nor any of them.
"""
