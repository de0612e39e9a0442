"""What a resync and a publish refuse, before anything is touched; and what the end of a run does not fail for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config.load import load_pipeline, load_platform
from tailrace.core.errors import Misconfigured
from tailrace.runtime.build import Pipeline, Resync, open_pipeline
from tailrace.runtime.report import Silent

FEED = """
pipeline_id: feed
source: {source_type: files, path: FOLDER, format: csv, table: items}
cdc: {keys: [id]}
sinks: [{sink_id: base, sink_type: sqlite, sqlite: {path: FOLDER/base.db}}]
"""
STAGED = """
pipeline_id: shop
source: {source_type: convex, deployment_url: 'http://127.0.0.1:1', deploy_key: none}
sinks: [{sink_id: files, sink_type: staging, MORE staging: {path: FOLDER/staging}}]
"""


def opened(folder: Path, text: str) -> Pipeline:
    (folder / "pipeline.yaml").write_text(text.replace("FOLDER", str(folder)))
    (folder / "platform.yaml").write_text(f"control: {{root: '{folder}/control'}}")
    return open_pipeline(load_pipeline(folder / "pipeline.yaml").config, load_platform(folder / "platform.yaml").config)


@pytest.mark.parametrize("resync", [Resync(every=True), Resync(tables=("items",))])
def test_what_somebody_else_fills_has_no_snapshot_to_take(tmp_path: Path, resync: Resync) -> None:
    with opened(tmp_path, FEED) as pipeline, pytest.raises(Misconfigured) as found:
        pipeline.run(once=True, report=Silent(), resync=resync)
    assert found.value.code == "not-available"
    assert "cdc undeploy" in found.value.hint


def test_a_source_that_is_to_take_no_snapshot_takes_no_new_one(tmp_path: Path) -> None:
    text = (
        "pipeline_id: shop\nsource: {source_type: postgres, database: d, tables: [public.a], snapshot_mode: never}\n"
        "sinks: [{sink_id: base, sink_type: sqlite, sqlite: {path: FOLDER/base.db}}]"
    )
    with opened(tmp_path, text) as pipeline, pytest.raises(Misconfigured) as found:
        pipeline._refuse_resync()
    assert (found.value.code, "snapshot_mode" in found.value.hint) == ("not-available", True)


def test_there_must_be_something_to_publish_and_somewhere(tmp_path: Path) -> None:
    for text, code in (
        (FEED, "no-target"),
        (STAGED.replace("MORE", ""), "missing-setting"),
        (STAGED.replace("MORE", "mode: append,"), "wrong-value"),
    ):
        with opened(tmp_path, text) as pipeline, pytest.raises(Misconfigured) as found:
            pipeline.publish(None, Silent())
        assert found.value.code == code


def test_staging_takes_no_rows_of_another_source(tmp_path: Path) -> None:
    sink = FEED.replace(
        "sink_type: sqlite, sqlite: {path: FOLDER/base.db}", "sink_type: staging, staging: {path: FOLDER/s}"
    )
    with opened(tmp_path, sink) as pipeline, pytest.raises(Misconfigured) as found:
        pipeline.plan()
    assert found.value.code == "wrong-source"
