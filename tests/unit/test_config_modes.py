"""What a target keeps of a table: modes, soft deletes and tracked columns, and what they exclude."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config.load import load_pipeline
from tailrace.config.pipeline import SinkConfig
from tailrace.core.errors import TailraceError

FILE = """\
pipeline_id: shop
source: {source_type: postgres, database: shop, tables: [public.orders]}
sinks:
  - sink_id: lake
    sink_type: delta
    delta: {path: ./lake}
"""


def sink(tmp_path: Path, more: str) -> SinkConfig:
    path = tmp_path / "pipeline.yaml"
    path.write_text(FILE + more)
    return load_pipeline(path, {}).config.sinks[0]


def test_a_history_says_which_columns_begin_a_record(tmp_path: Path) -> None:
    found = sink(tmp_path, "    mode: scd2\n    tables: {public.orders: {track_history: [total]}}\n")
    assert (found.mode, found.tables["public.orders"].track_history) == ("scd2", ("total",))


@pytest.mark.parametrize(
    ("more", "flag"),
    [
        ("", ""),
        ("    delete_mode: soft\n", "deleted_at"),
        ("    delete_mode: soft\n    soft_delete_column: gone\n", "gone"),
    ],
)
def test_a_soft_delete_has_a_column(tmp_path: Path, more: str, flag: str) -> None:
    assert sink(tmp_path, more).flag == flag


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("    soft_delete_column: gone\n", "soft_delete_column has no meaning without delete_mode soft"),
        ("    mode: scd2\n    delete_mode: soft\n", "delete_mode soft belongs to mode scd1, and this target has scd2"),
        ("    delete_mode: soft\n    soft_delete_column: _cdc_gone\n", 'starts with "_cdc_"'),
        ("    tables: {public.orders: {track_history: [total]}}\n", "belongs to mode scd2, and this target has scd1"),
        (
            "    mode: scd2\n    tables: {public.orders: {primary_key: [id], track_history: [id]}}\n",
            'track_history of table "public.orders" names "id"',
        ),
        (
            "    mode: scd2\n    tables: {public.orders: {columns: [id, total], track_history: [state]}}\n",
            'track_history of table "public.orders" names "state"',
        ),
        ("    mode: scd2\n    tables: {public.orders: {track_history: []}}\n", "is empty or names a column twice"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(TailraceError) as refused:
        sink(tmp_path, more)
    assert refused.value.code == "wrong-value"
    assert said in str(refused.value)


ICEBERG = FILE.replace("delta: {path: ./lake}", "iceberg: {catalog: hadoop, warehouse: ./lakeMORE}").replace(
    "sink_type: delta", "sink_type: iceberg"
)


def iceberg_sink(tmp_path: Path, inside: str, more: str = "") -> SinkConfig:
    path = tmp_path / "pipeline.yaml"
    path.write_text(ICEBERG.replace("MORE", inside) + more)
    return load_pipeline(path, {}).config.sinks[0]


@pytest.mark.parametrize(
    ("inside", "mode"), [("", "scd1"), (", write_mode: append", "append"), (", write_mode: upsert", "scd1")]
)
def test_a_write_mode_is_another_word_for_the_mode(tmp_path: Path, inside: str, mode: str) -> None:
    assert iceberg_sink(tmp_path, inside).mode == mode


@pytest.mark.parametrize(
    ("inside", "more", "code"),
    [
        (", write_mode: upsert", "    mode: scd2\n", "wrong-value"),
        (", s3_endpoint: 'http://s3'", "", "not-available"),
        (", maintenance: {compaction_file_threshold: 1}", "", "wrong-value"),
    ],
)
def test_what_an_iceberg_target_cannot_do_is_refused(tmp_path: Path, inside: str, more: str, code: str) -> None:
    with pytest.raises(TailraceError) as refused:
        iceberg_sink(tmp_path, inside, more)
    assert refused.value.code == code
