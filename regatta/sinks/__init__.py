"""Sends the results of a run to other tools: reads a journal, and writes files and records of these tools.

A sink reads only the journal. It may be slow, fail, or be added later, without an effect on the run. A sink writes the
same output whenever it gets the same journal, so a second export changes nothing. The packages of other tools are
imported when a sink is opened.
"""

from regatta.sinks.base import Sink, Writer, sink_named, usable_sinks
from regatta.sinks.feed import export, following
from regatta.sinks.mlflow import mlflow
from regatta.sinks.tables import csv, parquet
from regatta.sinks.tensorboard import tensorboard

__all__ = ["Sink", "Writer", "csv", "export", "following", "mlflow", "parquet", "tensorboard", "usable_sinks"]
__all__ += ["sink_named"]
