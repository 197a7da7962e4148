"""What is run and kept: studies and their experiments, trials, records, and how records are confirmed."""
