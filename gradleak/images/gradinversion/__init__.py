"""Restore batches of images from deep networks with batch norm (yin2021)."""
