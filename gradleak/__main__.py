"""`python -m gradleak`, and the command `gradleak`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while that is loaded is one line as well."""
    try:
        from gradleak import cli
    except KeyboardInterrupt:
        sys.stderr.write("gradleak: interrupted\n")
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
