"""Python's SQLite, whatever was loaded before it.

TensorFlow carries an SQLite of its own, without full-text search, and its functions stand in for the system's in all
that is loaded after it; unless whoever is loaded asks for its own libraries first.
"""

from __future__ import annotations

import os
import sys

_flags = sys.getdlopenflags() if hasattr(sys, "getdlopenflags") else 0
if hasattr(os, "RTLD_DEEPBIND"):
    sys.setdlopenflags(_flags | os.RTLD_DEEPBIND)
try:
    import sqlite3
finally:
    if hasattr(os, "RTLD_DEEPBIND"):
        sys.setdlopenflags(_flags)

__all__ = ["sqlite3"]
