"""The pages of wang2024, one module each."""
