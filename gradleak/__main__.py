"""`python -m gradleak`."""

from gradleak.cli import main

main()
