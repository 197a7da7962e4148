"""The pages of posterior2023, one module each."""
