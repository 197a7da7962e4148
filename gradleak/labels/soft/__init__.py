"""Recover labels as probabilities: of single samples, of batches, and by the published search."""
