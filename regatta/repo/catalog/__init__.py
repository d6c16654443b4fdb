"""Versions and their metadata, in SQLite.

catalog.py      the relations
migrations.py   their tables
queries.py      filters and orders as SQL
records.py      frozen records that methods return
names.py        names of versions and tags
networks.py     networks as rows
"""
