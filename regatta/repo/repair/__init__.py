"""Finds out where catalog, store and files of a repository disagree, and mends them from each other.

agreement.py    versions against the parameter store; gc deletes nothing while they disagree
store.py        the index of the store, and the names that keep snapshots
files.py        files of versions, from copies elsewhere
"""
