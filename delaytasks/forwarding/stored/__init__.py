"""Targets that staff store in the rows of topics."""
