"""Soft labels and features of a whole batch, out of one averaged gradient."""
