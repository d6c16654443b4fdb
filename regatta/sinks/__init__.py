"""Where results go beside the run's own folder: a journal enters, files and records of other tools leave.

    base.py          Sink and Writer, the two small protocols, and a sink by its name
    feed.py          a sink that follows a run beside it, and one that is given a run's journal afterwards
    tables.py        csv, parquet: a row for each report, and the final table
    tensorboard.py   event files: a folder for each configuration
    mlflow.py        a run for the sweep, and one inside it for each configuration

A sink reads the journal and nothing else, so that it can be slow, fail, or come later without the run noticing. What it
writes for one journal is always the same: sent twice, it is there once. The packages of other tools are imported
when a sink is opened.
"""

from regatta.sinks.base import Sink, Writer, sink_named, usable_sinks
from regatta.sinks.feed import export, following
from regatta.sinks.mlflow import mlflow
from regatta.sinks.tables import csv, parquet
from regatta.sinks.tensorboard import tensorboard

__all__ = ["Sink", "Writer", "csv", "export", "following", "mlflow", "parquet", "tensorboard", "usable_sinks"]
__all__ += ["sink_named"]
