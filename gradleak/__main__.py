"""`python -m gradleak`, and the command `gradleak`."""

from gradleak import interrupts


def main() -> None:
    """Run the command line."""
    interrupts.leave_at_once()
    from gradleak import cli  # typer takes a while to load

    cli.main()


if __name__ == "__main__":
    main()
