"""Build the book: run its pages, write its generated parts, render and print it, and run recorded trials again."""

# Seconds after which a wait for another process, such as a kernel or a browser, is given up. The limit only ends a wait
# that would last for ever: a busy machine needs less.
PATIENCE = 15 * 60
