"""A pipeline of files into SQLite, run as `cdc run --once` does: for tests that look at what became of the files."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tailrace.config.load import pipeline_from
from tailrace.config.platform import PlatformConfig
from tailrace.config.yaml_text import read_yaml
from tailrace.runtime.build import Pipeline, open_pipeline
from tailrace.runtime.drain import Drain
from tailrace.runtime.feed import FileFeed
from tailrace.runtime.report import Silent

COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "name"}, {"name": "seq", "type": "bigint"}]
CDC = {"keys": ["id"], "operation_column": "op", "sequence_by": "seq"}


class Warned(Silent):
    """Remembers what it was warned of."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)


@dataclass
class Feed:
    """A directory, and the pipeline that reads it; `run` is a process."""

    folder: Path
    spark: SparkSession
    source: dict[str, Any] = field(default_factory=dict)
    cdc: dict[str, Any] = field(default_factory=lambda: dict(CDC))
    sink: dict[str, Any] = field(default_factory=dict)
    others: list[dict[str, Any]] = field(default_factory=list)
    """Further sinks, beside the one called `box`."""
    platform: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path.mkdir(exist_ok=True)

    @property
    def path(self) -> Path:
        return self.folder / "in"

    def put(self, name: str, *rows: object, header: str = "id,name,seq,op") -> Path:
        """Write a file of CSV, of JSON lines, or whatever bytes are given; each is older than a moment ago."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if rows and isinstance(rows[0], bytes):
            path.write_bytes(b"".join(row for row in rows if isinstance(row, bytes)))
        elif name.endswith(".csv"):
            path.write_text("\n".join([header, *map(str, rows), ""]))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def manifest(self, sequence: int, *names: str, **more: str) -> None:
        files = [{"name": name, **more} for name in names]
        (self.path / f"{sequence:04d}.manifest.json").write_text(json.dumps({"sequence": sequence, "files": files}))

    def opened(self) -> Pipeline:
        sqlite = {"sink_type": "sqlite", "sqlite": {"path": str(self.folder / "box.db")}}
        text = self.text(sqlite)
        config = pipeline_from(read_yaml("feed.yaml", json.dumps(text).encode()), os.environ).config
        platform = PlatformConfig.model_validate({"control": {"root": str(self.folder / "state")}, **self.platform})
        pipeline = open_pipeline(config, platform)
        pipeline.__dict__["_session"] = self.spark
        return pipeline

    def text(self, sqlite: dict[str, Any]) -> dict[str, Any]:
        return {
            "pipeline_id": "feed",
            "source": {
                "source_type": "files", "path": str(self.path), "format": "csv", "table": "people", "stable_seconds": "0",
                "columns": COLUMNS, **self.source,
            },
            "cdc": self.cdc,
            "sinks": [{"sink_id": "box", **({} if "sink_type" in self.sink else sqlite), **self.sink}, *self.others],
        }  # fmt: skip

    def run(self, *, max_slices: int | None = None) -> dict[str, Any]:
        """Run to the head; return the counts of the table, or raise what the run failed with."""
        report = Warned()
        with self.opened() as pipeline:
            done = pipeline.run(once=True, max_slices=max_slices, report=report)
        self.warnings += report.warnings
        if error := done.first_error():
            raise error
        tables: Sequence[Mapping[str, Any]] = done.to_json()["targets"][0]["tables"]  # type: ignore[index]
        return dict(tables[0]) if tables else {}

    def worker(self, target: str = "box") -> Drain:
        """Return the drain of a process that does not ask whether there is another."""
        pipeline = self.opened()
        life = pipeline._checkpoints.life()
        assert life is not None
        assert isinstance(pipeline._inlet, FileFeed)
        sink = next(sink for sink in pipeline._config.sinks if sink.sink_id == target)
        return pipeline._drains.drain(sink, life, pipeline._inlet.log(life, target), Silent())

    def states(self) -> dict[str, str]:
        """Return the newest state of each file."""
        with self.opened() as pipeline:
            files: Any = pipeline.files_status(every=True)["files"]
        return {row["file"]: row["state"] for row in files}

    def rows(self, columns: str = "id, name", table: str = "people") -> list[tuple[Any, ...]]:
        if not (self.folder / "box.db").exists():
            return []
        with closing(sqlite3.connect(self.folder / "box.db")) as db:
            there = db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchall()
            return db.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall() if there else []
