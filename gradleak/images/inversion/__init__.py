"""Recover images in closed form: invert networks layer by layer."""
