"""Labels as classes: one file a counting attack, and all of them by name."""
