"""The program of the PostgreSQL service: starts the server, waits to be asked to stop, stops it.

The server itself leaves the process group of whoever starts it, so a keeper could not end it without this.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tailrace.demo.postgres import EmbeddedPostgres

SETTINGS = {"fsync": "off", "full_page_writes": "off"}


def main(folder: Path, port: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    server = EmbeddedPostgres(folder, port, SETTINGS)
    server.password = os.environ.pop("TAILRACE_PG_PASSWORD")
    with server:
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
