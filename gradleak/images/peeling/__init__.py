"""Whole batches out of convolutional networks, one layer after the other from the last to the first."""
