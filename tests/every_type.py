"""Two rows with a column of every type, one full and one empty, to be read with a database's own client."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession

from tailrace.apply.target import Target
from tailrace.core.change import Change, Op
from tailrace.core.table import Column, Evolution, Table, fit
from tests.contracts.target import at, batch

KINDS = {
    "id": "bigint",
    "flag": "boolean",
    "tiny": "tinyint",
    "small": "smallint",
    "whole": "int",
    "big": "bigint",
    "single": "float",
    "real": "double",
    "nan": "double",
    "amount": "decimal(38,10)",
    "cents": "decimal(5,2)",
    "text": "string",
    "empty": "string",
    "bytes": "binary",
    "day": "date",
    "moment": "timestamp",
    "local": "timestamp_ntz",
    "tags": "array<string>",
    "numbers": "array<bigint>",
    "nested": "struct<a:int,b:array<decimal(4,2)>,c:string>",
    "pairs": "map<string,int>",
}

VALUES: dict[str, Any] = {
    "id": 1,
    "flag": True,
    "tiny": -128,
    "small": 32767,
    "whole": -(2**31),
    "big": 2**63 - 1,
    "single": 0.5,
    "real": 0.1,
    "nan": float("nan"),
    "amount": Decimal("1234567890123456789012345678.0123456789"),
    "cents": Decimal("-0.50"),
    "text": "naïve 🐍 'quoted' \"twice\" \\ ,\n",
    "empty": "",
    "bytes": b"\x00\xff",
    "day": datetime.date(1, 1, 1),
    "moment": datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, datetime.UTC),
    "local": datetime.datetime(1969, 7, 20, 20, 17, 40, 1),
    "tags": ['a "b" \\', None, "", "NULL"],
    "numbers": [1, None, 3],
    "nested": (1, [Decimal("1.50"), None], None),
    "pairs": {"k": 1},
}


def write_every_type(spark: SparkSession, target: Target, **instead: Any) -> None:
    """Write both rows into the table `public.all` of `target`, some values replaced; both are updated once."""
    values = {**VALUES, **instead}
    table = Table("public.all", tuple(Column(name, kind) for name, kind in KINDS.items()), ("id",))
    target.evolve(table.name, fit(None, table, Evolution.ALTER))
    nothing = {**dict.fromkeys(KINDS), "id": 2}
    creates = [
        Change(table.name, Op.CREATE, at(1), (1,), {**dict.fromkeys(KINDS), "id": 1}),
        Change(table.name, Op.CREATE, at(1), (2,), {**values, "id": 2}),
    ]
    target.apply(batch(spark, creates, 1, table))
    updates = [
        Change(table.name, Op.UPDATE, at(2), (1,), values),
        Change(table.name, Op.UPDATE, at(2), (2,), nothing),
    ]
    target.apply(batch(spark, updates, 2, table))
