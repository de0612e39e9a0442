"""The cases of Spark's AUTO CDC, to be run on any target that `apply_changes` can write to.

Vectors that ask for the same thing are applied side by side, each under a key of its own, to save time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import tailrace
from tailrace.core.errors import TailraceError
from tailrace.spark.frame import frame

Vector = dict[str, Any]
VECTORS: list[Vector] = json.loads((Path(__file__).parent / "vectors" / "autocdc.json").read_text("utf-8"))
CODES = {
    "AUTOCDC_MICROBATCH_VALIDATION.NULL_KEY": "null-key",
    "AUTOCDC_MICROBATCH_VALIDATION.NULL_SEQUENCE": "null-sequence",
    "AUTOCDC_INVALID_STATE.KEY_SCHEMA_DRIFT": "key-changed",
    "AUTOCDC_INVALID_STATE.SEQUENCING_TYPE_DRIFT": "sequence-type-changed",
    "AUTOCDC_INVALID_STATE.SCD_TYPE_DRIFT": "scd-type-changed",
    "AUTOCDC_INVALID_STATE.TRACK_HISTORY_DRIFT": "tracking-changed",
    "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE": "schema-refused",
}


def feed(spark: SparkSession, rows: list[dict[str, Any]], schema: dict[str, str]) -> DataFrame:
    columns = ", ".join(f"`{name}` {kind}" for name, kind in schema.items())
    texts = frame(spark, [(json.dumps(row),) for row in rows], "value string")
    return texts.selectExpr(f"from_json(value, '{columns}') AS row").select("row.*")


def plain(value: Any) -> Any:
    return {k: plain(v) for k, v in value.asDict().items()} if isinstance(value, Row) else value


def canonical(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@dataclass(frozen=True)
class Group:
    """Vectors that ask for the same, side by side in one table: each is told by a key column of its own."""

    vectors: list[Vector]
    target: str

    def apply(self, spark: SparkSession, n: int) -> None:
        first = self.vectors[0]
        packed = len(self.vectors) > 1
        rows = [
            row | ({"vector": vector["name"]} if packed else {})
            for vector in self.vectors
            for row in (vector["batches"][n] if n < len(vector["batches"]) else [])
        ]
        schema = first["batch_schemas"][n] if "batch_schemas" in first else first["schema"]
        keys = first["keys_by_batch"][n] if "keys_by_batch" in first else first["keys"]
        # A wider type is welcome here, so the refusal that the vector tells of is asked for.
        widened = first.get("expected_error") == "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE"
        options = dict(first["options"])
        if packed and "column_list" in options:
            options["column_list"] = [*options["column_list"], "vector"]
        tailrace.apply_changes(
            feed(spark, rows, schema | ({"vector": "string"} if packed else {})),
            self.target,
            keys=[*keys, "vector"] if packed else keys,
            sequence_by=first["sequence_by_by_batch"][n] if "sequence_by_by_batch" in first else first["sequence_by"],
            stored_as_scd_type=first["scd_type_by_batch"][n] if "scd_type_by_batch" in first else first["scd_type"],
            on_invalid="fail",
            schema_evolution="fail" if widened else "alter",
            batch_id=first["batch_ids"][n] if "batch_ids" in first else None,
            **options,
        )

    def rows(self) -> dict[str, list[str]]:
        found: dict[str, list[Any]] = {vector["name"]: [] for vector in self.vectors}
        for row in tailrace.read(self.target).collect():
            values = {name: plain(value) for name, value in row.asDict().items()}
            found[values.pop("vector", self.vectors[0]["name"])].append(values)
        return {name: canonical(rows) for name, rows in found.items()}

    def run(self, spark: SparkSession) -> list[dict[str, list[str]]]:
        """Apply every batch; return the rows of each vector after the last, and after those that a vector speaks of."""
        after = []
        last = max(len(vector["batches"]) for vector in self.vectors) - 1
        for n in range(last + 1):
            if self.vectors[0].get("error_batch") == n:
                with pytest.raises(TailraceError) as raised:
                    self.apply(spark, n)
                assert raised.value.code == CODES[self.vectors[0]["expected_error"]]
            else:
                self.apply(spark, n)
            wanted = n == last or any(str(n) in vector.get("expected_after", {}) for vector in self.vectors)
            after.append(self.rows() if wanted else {vector["name"]: [] for vector in self.vectors})
        return after


def group_of(vector: Vector) -> str:
    # Beside others a batch without rows would have some.
    empty = not all(vector["batches"])
    alone = empty or {"batch_schemas", "expected_error", "batch_ids", "level"} & vector.keys()
    asked = [vector[name] for name in ("scd_type", "schema", "options", "keys", "sequence_by")]
    return vector["name"] if alone else json.dumps(asked)


class Results:
    """Runs each group of vectors once per target, when the first of them is asked for."""

    def __init__(self, spark: SparkSession, place: Callable[[str], str]) -> None:
        self._spark = spark
        self._place = place
        self._done: dict[tuple[str, str], list[Any]] = {}

    def of(self, kind: str, vector: Vector) -> list[list[str]]:
        """Return the rows of `vector` after each batch."""
        group = group_of(vector)
        if (kind, group) not in self._done:
            vectors = [other for other in VECTORS if group_of(other) == group]
            self._done[kind, group] = Group(vectors, self._place(kind)).run(self._spark)
        return [rows[vector["name"]] for rows in self._done[kind, group]]

    def check(self, kind: str, vector: Vector) -> None:
        """Fail unless the table came out as AUTO CDC makes it."""
        after = self.of(kind, vector)
        for n, expected in vector.get("expected_after", {}).items():
            assert after[int(n)] == canonical(expected)
        allowed = vector.get("expected_one_of") or [vector["expected"]]
        assert after[-1] in [canonical(rows) for rows in allowed]
