"""Commands for versions of models."""
