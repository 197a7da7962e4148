"""What makes the book: runs and their cache, records, pages, figures, tables, the build."""
