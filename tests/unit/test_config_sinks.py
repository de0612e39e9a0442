"""Sinks of the real types, as files name them: what has a default, and what tables are called there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.config.load import Loaded, load_pipeline
from tailrace.config.pipeline import PipelineConfig
from tailrace.core.errors import Misconfigured

PIPELINE = """\
pipeline_id: example
topic_prefix: cdc
source:
  database: shop
  password: canary-3
  tables: [public.people, public.bills]
sinks:
  - sink_id: calls
    sink_type: webhook
    enabled: true
    webhook: {url: "http://localhost:9000/in", method: POST, headers: {X-From: shop}, timeout_seconds: 10}
  - sink_id: events
    sink_type: postgres
    enabled: false
    postgres: {host: localhost, port: 5433, database: other, target_table: public.happened, batch_size: 50, upsert: true}
  - sink_id: lake
    sink_type: iceberg
    enabled: false
    iceberg:
      catalog_uri: "sqlite:////srv/catalog.db"
      warehouse: "file:///srv/warehouse"
      table_name: people_cdc
      write_mode: append
      batch_size: 500
      auto_create_table: true
"""


def load(tmp_path: Path, text: str) -> Loaded[PipelineConfig]:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    return load_pipeline(file, {})


def test_a_file_that_leaves_users_out_is_read_with_their_defaults(tmp_path: Path) -> None:
    loaded = load(tmp_path, PIPELINE)
    options: dict[str, Any] = {sink.sink_id: sink.options for sink in loaded.config.sinks}
    assert (options["events"].username, options["events"].upsert) == ("cdc_user", True)
    assert [sink.sink_id for sink in loaded.config.enabled_sinks] == ["calls"]


def test_one_name_for_several_tables_is_told_and_refused_once_the_target_is_enabled(tmp_path: Path) -> None:
    warnings = [caution.message for caution in load(tmp_path, PIPELINE).warnings]
    said = 'table_name "people_cdc" names one table, and the pipeline has 2'
    assert [said in text for text in warnings].count(True) == 1
    with pytest.raises(Misconfigured) as refused:
        load(tmp_path, PIPELINE.replace("enabled: false", "enabled: true"))
    assert said in refused.value.render()


def test_a_table_has_the_name_that_the_options_of_its_target_say(tmp_path: Path) -> None:
    one = PIPELINE.replace(", public.bills", "").replace("enabled: false", "enabled: true")
    config = load(tmp_path, one).config
    assert config.names(config.sinks[2]) == {"public.people": "people_cdc"}
    config = load(tmp_path, one + "    tables: {public.people: {name: everybody}}\n").config
    assert config.names(config.sinks[2]) == {"public.people": "everybody"}
