"""Build the book: run its pages, write its generated parts, render and print it, and spot-check its records."""
