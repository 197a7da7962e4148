"""The pages of wainakh2021, one module each."""
