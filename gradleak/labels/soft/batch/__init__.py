"""Recover the soft labels and features of a whole batch from a single averaged gradient."""
