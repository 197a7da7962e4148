"""Run studies and store the results: experiments, trials, records, and spot checks that confirm records."""
