"""Versions of models: what is trained or brought along enters, and can be found, compared and had back.

    repo.py          Repo: commit, versions, log, checkout, and where each is done
    catalog.py       the relations, in SQLite;  migrations.py  their tables;  queries.py  filters and orders
    records.py       what is answered: frozen records, for data frames and notebooks
    names.py         names and references;  networks.py  graphs as rows;  metrics.py, weights.py  what people hand over
    files.py         files by content;  checkout.py  the way out;  git.py  the commit around it
    snapshots.py     where weights are;  checks.py  fsck and gc
    describe.py      all of one version;  distributions.py  its weights, from their leading planes
    diff.py          what versions differ in;  layers.py  networks;  parameters.py  weights;  sides.py  what is compared
    evaluate/        labels of full precision, from leading planes
    sweep.py         a run becomes versions
    staging.py       what was added and waits for a commit
    intake.py        what files are understood as;  logs.py, archives.py, onnx_files.py  how they are read
    archiving.py     all of it in less room;  doctor.py  what could be wrong, and what to do

Goes through the parameter store for weights; knows nothing of the command line, and imports no framework.
"""

from regatta.repo.catalog.records import Description, Version, Versions
from regatta.repo.repo import Repo

__all__ = ["Description", "Repo", "Version", "Versions"]
