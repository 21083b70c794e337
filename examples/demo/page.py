"""The web page of the demo's database, while the demo runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from sqlalchemy import URL


@contextmanager
def shown(console: Console, url: URL) -> Iterator[None]:
    """Run ``inbox-outbox web`` meanwhile, and print where the page is."""
    command = [sys.executable, "-m", "inbox_outbox", "web", "--port", "0"]
    environment = os.environ | {"INBOX_OUTBOX_URL": url.render_as_string(hide_password=False)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            address, _, _ = next(process.stderr or iter(()), "").partition(" ")
            console.print(f"The database in a browser, while the demo runs: {address}", soft_wrap=True)
            yield
        finally:
            process.terminate()
