"""Executes a plan: a sweep goes in, a journal with everything that was trained comes out.

    messages.py   the messages between the controller and its workers
    controller/   the controller: its loop, trials, state files, run log, requests
    profiling/    measures models, packs and groups on a few batches before the run is planned
    planning/     decides on packs, groups and sharing, and decides again when units prove a plan wrong
    sharing/      preprocessing that is done once for many models
    workers/      where units run: in this process, in processes of their own, or on Ray
    archiver.py   moves states at ends of epochs into the parameter store, beside the run
    replay.py     trains a run again and compares every state

It knows frameworks only through `regatta.frameworks` and must not know the command line.
"""
