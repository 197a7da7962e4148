"""Speed, measured in one run, as a table and as JSON: `python -m benchmarks`."""
