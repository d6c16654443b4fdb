"""`python -m regatta` is the command `regatta`."""

from regatta.cli.main import entry

entry()
