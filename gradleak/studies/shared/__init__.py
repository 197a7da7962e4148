"""Code that several studies share: samples, networks, scores and pictures."""
