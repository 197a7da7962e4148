"""Recover images by search: gradient matching."""
