"""Recover labels as classes: one file for each counting attack, and all attacks by name."""
