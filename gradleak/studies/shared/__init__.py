"""What several studies share: samples, networks, tallies, pictures."""
