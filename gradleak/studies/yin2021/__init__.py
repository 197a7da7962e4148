"""The pages of yin2021, one module each."""
