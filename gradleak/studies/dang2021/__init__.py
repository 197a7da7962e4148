"""The pages of dang2021, one module each."""
