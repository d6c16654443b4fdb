"""Versions of models: committed, described, compared, and written out again.

    repo.py          Repo: one method for each verb, which calls the module of the verb
    commit.py        commit, copy and delete a version;  commit_run.py  a run becomes versions
    describe.py      everything about one version;  diff.py  the differences between versions
    checkout.py      a version is written to a folder;  references.py  references as people write them
    snapshots.py     where the weights of a version are;  weights.py  weights in and out
    file_store.py    files of versions, by content
    fsck.py, gc.py   checks, and deletes what nothing uses;  doctor.py  checks the environment as well
    archive.py       all weights in less space
    catalog/         versions and their metadata, in SQLite
    intake/          what users bring: files, logs, settings, and the staging area
    inspect/         layers of networks and distributions of weights
    evaluate/        labels of full precision, from the leading planes of weights

Weights go through the parameter store. This package knows nothing about the command line or the engine, and imports no
framework.
"""

from regatta.repo.catalog.records import Description, Version, Versions
from regatta.repo.repo import Repo

__all__ = ["Description", "Repo", "Version", "Versions"]
