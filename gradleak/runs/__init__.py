"""Run studies and store the results: experiments, trials and records."""
