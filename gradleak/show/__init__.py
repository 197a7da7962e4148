"""Show results as tables and figures, and choose the run that a page shows."""
