"""A whole copy of a repository, made while other processes write to it.

pinned.py          what the repository holds at one moment, and keeps until it is copied
copy_repository.py copies that, and checks the copy
"""
