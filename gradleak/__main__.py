"""The entry point of `python -m gradleak` and of the command `gradleak`."""

import sys

from gradleak import interrupts


def main() -> None:
    """Run the command line; an audit, which runs the code of a user's model, in a child process."""
    interrupts.leave_at_once()
    if next((word for word in sys.argv[1:] if not word.startswith("-")), "") == "audit":
        from gradleak import watched

        watched.run(_commands)
    _commands()


def _commands() -> None:
    from gradleak import cli  # imported late because typer loads slowly

    cli.main()


if __name__ == "__main__":
    main()
