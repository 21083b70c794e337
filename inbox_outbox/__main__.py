"""The entry point of `inbox-outbox` and `python -m inbox_outbox`."""

import sys


def main() -> None:
    """Run the command line, or print which extra is missing, or whose packages are in the place of ours."""
    try:
        from ._app import run
    except ImportError as error:
        if error.name in ("typer", "rich"):
            sys.exit(f"inbox-outbox: {error.name} is not installed; the command line needs inbox-outbox[cli]")
        from ._installing.installed import changed_files, foreign_packages

        complaints = [*foreign_packages(), *changed_files()]
        if not complaints:
            raise
        sys.exit("\n".join(f"inbox-outbox: {each.about}: {each.why}" for each in complaints))
    run()


if __name__ == "__main__":
    main()
