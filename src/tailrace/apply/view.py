"""Rows of one session, named where another sees them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame


@contextmanager
def shared_view(rows: DataFrame) -> Iterator[str]:
    """Give `rows` a name for as long as the statement runs.

    Only a global view can be named in a session other than the one that made the rows.
    """
    name = f"tailrace_{uuid.uuid4().hex}"
    rows.createGlobalTempView(name)
    try:
        yield f"global_temp.{name}"
    finally:
        rows.sparkSession.catalog.dropGlobalTempView(name)
