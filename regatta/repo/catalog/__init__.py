"""Versions and their metadata, in SQLite."""
