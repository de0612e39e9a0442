"""Bronze tables folded by our own engine, as the flows of the bundle say."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import tailrace
from tailrace.databricks.silver import Silver, silver_of
from tailrace.runtime.build import Pipeline
from tests.convex import Rows


def silver(spark: SparkSession, folder: Path, pipeline: Pipeline) -> Rows:
    """Return the documents that the bronze tables of `pipeline` come to, made anew in `folder`."""
    landed = pipeline.landing()
    found: Rows = {}
    for flow in silver_of(landed):
        if documents := _folded(spark, folder, flow, landed.options.place(flow.bronze).sql):
            found[flow.source] = documents
    return found


def _folded(spark: SparkSession, folder: Path, flow: Silver, bronze: str) -> dict[str, object]:
    into = f"delta:{folder}/silver/{flow.name}"
    # The document itself goes along: it tells NaN, -0.0 and types apart.
    document = F.col("_cdc_raw_document_json").alias("document")
    changes = spark.table(bronze).select(*(F.expr(text) for text in flow.selected()), document)
    tailrace.apply_changes(
        changes, into, keys=list(flow.keys), sequence_by=flow.sequence_by,
        apply_as_deletes=flow.deleted_when, except_column_list=list(flow.left_out),
    )  # fmt: skip
    rows = tailrace.read(into).select("_id", "document").collect()
    return {
        key: {name: json.dumps(value, sort_keys=True) for name, value in json.loads(text).items()} for key, text in rows
    }
