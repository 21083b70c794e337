"""The entry point of `inbox-outbox` and `python -m inbox_outbox`."""

import sys


def main() -> None:
    """Run the command line, or print in one line which extra is missing."""
    try:
        from ._app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"inbox-outbox: {error.name} is not installed; the command line needs inbox-outbox[cli]")
    run()


if __name__ == "__main__":
    main()
