"""The studies on wang2024, one module for each page of the book."""
