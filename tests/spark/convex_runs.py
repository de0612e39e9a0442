"""Runs of a pipeline from an emulator to any sinks, in a folder."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tailrace.config.load import load_pipeline, load_platform
from tailrace.core import convex
from tailrace.runtime.build import Pipeline, Resync, open_pipeline
from tailrace.runtime.report import Silent
from tailrace.runtime.run import RunReport
from tailrace.testing.convex import Deployment, Emulator


class Runs:
    """A pipeline whose sinks are `sinks`, lines of YAML in which FOLDER stands for the folder."""

    def __init__(self, spark: SparkSession, server: Emulator, folder: Path, sinks: str, platform: str = "") -> None:
        self.spark = spark
        self.folder = folder
        source = f"{{source_type: convex, deployment_url: '{server.url}', deploy_key: '{server.behaviour.key}'}}"
        sinks = sinks.replace("FOLDER", str(folder))
        (folder / "pipeline.yaml").write_text(f"pipeline_id: shop\nsource: {source}\nsinks:\n{sinks}\n")
        (folder / "platform.yaml").write_text(
            f"control: {{root: '{folder}/control'}}\nlog: {{root: '{folder}/log'}}\n{platform}"
        )

    def open(self) -> Pipeline:
        pipeline = open_pipeline(
            load_pipeline(self.folder / "pipeline.yaml").config, load_platform(self.folder / "platform.yaml").config
        )
        pipeline.__dict__["_session"] = self.spark
        return pipeline

    def run(self, resync: Resync = Resync(), **more: Any) -> RunReport:  # noqa: B008
        with self.open() as pipeline:
            report = pipeline.run(once=True, report=Silent(), resync=resync, **more)
        if error := report.first_error():
            raise error
        return report

    def lake(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a Delta table below `FOLDER/lake`."""
        return [row.asDict() for row in self.spark.read.format("delta").load(f"{self.folder}/lake/{table}").collect()]


def write(deployment: Deployment, chance: random.Random, steps: int, values: Iterable[Any] = (1, 2**60)) -> None:
    """Commit random changes of one table, deletes among them; the field `n` is one of `values`."""
    chosen = list(values)
    for _ in range(steps):
        keys = sorted(deployment.documents("users"))
        document = {"name": chance.choice(["ann", "bo", "naïve ☃"]), "n": chance.choice(chosen)}
        kind = chance.random() if keys else 0.0
        if kind < 0.5:
            deployment.insert("users", document)
        elif kind < 0.75:
            deployment.replace("users", chance.choice(keys), document if kind < 0.7 else {"name": "only"})
        else:
            deployment.delete("users", chance.choice(keys))


def compare(rows: Iterable[Mapping[str, Any]], documents: Mapping[str, Mapping[str, Any]], what: str) -> None:
    """Hold rows of a target against documents; where two columns share a field, the second one has its text."""
    kept = {row["_id"]: row for row in rows}
    assert kept.keys() == documents.keys(), what
    for key, document in documents.items():
        row = kept[key]
        for field in ("name", "n"):
            value, text = document.get(field), row.get(f"_text_{field}")
            told = f"{what} {key} {field}: {dict(row)} {document}"
            if text is None:
                assert _plain(row[field]) == _plain(value), told
            else:
                assert text == convex.shown(value), told
                assert row[field] is None or _plain(row[field]) == _plain(value), told


def _plain(value: object) -> object:
    """Return a value so that NaN equals itself, and 1 is not 1.0."""
    return (type(value), "NaN" if isinstance(value, float) and math.isnan(value) else value)
