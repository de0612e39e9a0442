"""Messages of a binlog, in the log that we write: those of `envelopes.debezium`, with places of their own.

A place is 40 hexadecimal digits: number of the binlog, place in it at which the transaction begins, number of the event
in the transaction, number of the row in the event. It is total: the binlog holds transactions in the order of their
commits, each in one piece, and no two rows have the same numbers but the halves of a changed key, which are two keys of
the table. A message that is read again has the place it had.
"""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.core.table import Table
from tailrace.envelopes.debezium import Order, open_ordered


def _in_binlog(source: Expression) -> Expression:
    return F.when(source["place"].rlike("^[0-9a-f]{40}$"), source["place"])


_PLACE = Order(field="place", fields="place string", text=_in_binlog)


def open_rows(rows: DataFrame, table: Table, epoch: int, max_bytes: int) -> DataFrame:
    """Open the messages of one table; see `envelopes.debezium` for the columns that come out."""
    return open_ordered(rows, table, epoch, max_bytes, _PLACE)
