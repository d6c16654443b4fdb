"""Python's own SQLite, even if TensorFlow was loaded before.

TensorFlow contains another SQLite, without full-text search, and its functions replace those of the system in
libraries that are loaded later. RTLD_DEEPBIND makes a library prefer its own dependencies.
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
