"""How results are shown: tables, figures, and the run that a page draws them from."""
