"""Labels as probabilities: of one sample, of a batch, and by the published search."""
