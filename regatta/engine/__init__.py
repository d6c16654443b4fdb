"""Makes a plan happen: a sweep enters, a journal with all that was trained leaves.

    events.py    what controller and workers say to each other
    journal.py   the append-only record of a run: written first, then acted on
    record.py    what a journal says, folded: the state of a run, live or long past
    runner.py    the controller: hears events, asks the hop scheduler, assigns units
    keeper.py    states at ends of epochs go into the parameter store, beside the run
    workers/     where units run: in this process, or in processes of their own
    trace.py     the units of a run as rows, and as a Chrome trace

It knows frameworks only through `regatta.frameworks` and must not know the command line.
"""
