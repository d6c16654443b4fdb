"""Commands that train, and commands for runs."""
