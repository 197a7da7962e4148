"""Recover whole batches from the gradients of convolutional networks, layer by layer from the last to the first."""
