"""Commands for the repository as a whole."""
