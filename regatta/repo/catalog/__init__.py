"""What versions there are and what is known of them, in SQLite.

catalog.py      the relations
migrations.py   their tables
queries.py      filters and orders as SQL
records.py      frozen records that answers are made of
names.py        names of versions and tags
networks.py     networks as rows
"""
