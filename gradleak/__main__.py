"""The entry point of `python -m gradleak` and of the command `gradleak`."""

from gradleak import interrupts


def main() -> None:
    """Run the command line."""
    interrupts.leave_at_once()
    from gradleak import cli  # imported late because typer loads slowly

    cli.main()


if __name__ == "__main__":
    main()
