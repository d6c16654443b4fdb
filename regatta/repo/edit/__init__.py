"""Changes of versions and runs that exist: delete them, take that back, and give them other names.

delete.py          versions, and runs with or without theirs
deleted.py         records of deletions, which undo reads
undo.py            takes back a deletion, until gc has freed its content
preview.py         what a deletion would free
rename.py          other names for runs, and for models with all their versions
"""
