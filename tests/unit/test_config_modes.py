"""What a target keeps of a table: modes, soft deletes and tracked columns, and what they exclude."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config.load import load_pipeline
from tailrace.config.pipeline import SinkConfig
from tailrace.core.errors import TailraceError
from tailrace.targets.iceberg import Options, jars

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


def test_tracked_columns_without_a_history_are_doubtful_and_no_error(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(FILE + "    tables: {public.orders: {track_history: [total]}}\n")
    (warning,) = load_pipeline(path, {}).warnings
    assert warning.code == "no-effect"
    assert 'track_history of table "public.orders" has no effect: this target has mode scd1' in warning.message


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
        (", s3_endpoint: 'http://s3'", "", "wrong-value"),
        (", s3_access_key_id: '${A:-a}'", "", "wrong-value"),
        (", maintenance: {compaction_file_threshold: 1}", "", "wrong-value"),
    ],
)
def test_what_an_iceberg_target_cannot_do_is_refused(tmp_path: Path, inside: str, more: str, code: str) -> None:
    with pytest.raises(TailraceError) as refused:
        iceberg_sink(tmp_path, inside, more)
    assert refused.value.code == code


def test_a_warehouse_in_s3_asks_for_its_client_and_no_other_does() -> None:
    here = Options(catalog_uri="sqlite:///c.db", warehouse="./lake")
    there = Options(catalog_uri="sqlite:///c.db", warehouse="s3://lake", s3_region="eu-central-1")
    assert (jars(here), jars(there)) == ((), ("tailrace.targets.iceberg",))
    assert "io-impl" not in here.settings()
    assert there.settings()["client.region"] == "eu-central-1"
    assert not any(key.startswith("s3.") for key in there.settings())
    for wrong in ({"catalog": "hadoop"}, {"catalog_uri": "sqlite:///c.db", "s3_access_key_id": "a"}):
        with pytest.raises(ValueError, match=r"S3|belong together"):
            Options(warehouse="s3://lake", **wrong)


POSTGRES = """
pipeline_id: shop
source: {database: shop, username: u, password: '${P}', tables: [public.orders]}
sinks:
  - sink_id: events
    sink_type: postgres
    postgres: {database: d, username: u, MORE}
"""


@pytest.mark.parametrize(
    ("inside", "more", "code"),
    [
        ("target_table: public.cdc_events, upsert: true, batch_size: 50", "", ""),
        ("target_table: cdc_events", "    mode: scd1\n", "wrong-value"),
        ("target_table: a.b.c", "", "wrong-value"),
        ("upsert: true", "", "wrong-value"),
    ],
)
def test_a_table_of_events_is_in_mode_append(tmp_path: Path, inside: str, more: str, code: str) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(POSTGRES.replace("MORE", inside) + more)
    if not code:
        loaded = load_pipeline(path, {"P": "x"})
        assert loaded.config.sinks[0].mode == "append"
        assert ["batch_size" in caution.message for caution in loaded.warnings] == [True]
        return
    with pytest.raises(TailraceError) as refused:
        load_pipeline(path, {"P": "x"})
    assert refused.value.code == code


def test_a_rest_catalog_is_a_server_and_gets_its_secret_as_one() -> None:
    rest = {"catalog": "rest", "warehouse": "lake"}
    told = Options(**rest, catalog_uri="https://host", catalog_username="me", catalog_password="s").settings()
    assert (told["type"], told["uri"], told["warehouse"]) == ("rest", "https://host", "lake")
    assert told["credential"] == "me:s"
    assert Options(**rest, catalog_uri="https://host", catalog_password="s").settings()["token"] == "s"
    for wrong in ("", "sqlite:///file", "https://me:s@host"):
        with pytest.raises(ValueError, match="catalog"):
            Options(**rest, catalog_uri=wrong)
