"""What is wrong with a server, a right or a setting gets a code and a hint, and nothing is left behind."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import ValidationError

from tailrace.core.errors import Halt, TailraceError
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.sources.postgres import Options, PostgresSource
from tests.service.reading import Database, brief


def refusal(source: PostgresSource) -> TailraceError:
    with pytest.raises(TailraceError) as raised:
        source.check()
    assert raised.value.hint
    return raised.value


def nothing_left(database: Database) -> bool:
    slots = database.sql.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()").fetchall()
    return not slots and not database.sql.execute("SELECT 1 FROM pg_publication").fetchall()


@pytest.fixture
def reader(database: Database) -> Iterator[dict[str, Any]]:
    """A user with just a login, on a table owned by another."""
    database.run("CREATE TABLE a (id int PRIMARY KEY)", f"CREATE ROLE r_{database.name} LOGIN PASSWORD 'sesame-canary'")
    yield {"username": f"r_{database.name}", "password": "sesame-canary"}
    database.run(f"DROP OWNED BY r_{database.name}", f"DROP ROLE r_{database.name}")


def test_a_ready_database_passes_and_is_left_as_it_was(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    source = database.source()
    source.check()
    assert nothing_left(database)
    assert len(source.plan()) == 2


def test_a_wrong_password_is_named_but_not_shown(database: Database) -> None:
    error = refusal(database.source(password="sesame-canary"))
    assert (error.code, error.exit_code) == ("wrong-password", 3)
    assert "sesame-canary" not in error.render()
    assert "sesame-canary" not in repr(database.options(password="sesame-canary"))


def test_a_server_that_is_down(database: Database) -> None:
    assert refusal(database.source(port=1)).code == "postgres-unreachable"


def test_an_unknown_database(database: Database) -> None:
    assert refusal(database.source(database="nowhere")).code == "unknown-database"


def test_an_unknown_table_suggests_the_nearest(database: Database) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)")
    error = refusal(database.source(tables=["public.order"]))
    assert (error.code, error.exit_code) == ("unknown-table", 2)
    assert "public.orders" in error.hint


def test_rights_are_asked_for_one_by_one(database: Database, reader: dict[str, Any]) -> None:
    user = reader["username"]
    source = database.source(tables=["public.a"], **reader)
    assert "REPLICATION" in str(refusal(source))
    database.run(f"ALTER ROLE {user} REPLICATION")
    assert refusal(source).code == "missing-grant"
    assert 'may not read table "public.a"' in str(refusal(source))
    database.run(f"GRANT SELECT ON a TO {user}")
    assert refusal(source).code == "cannot-publish"
    assert nothing_left(database)
    database.run(f"CREATE PUBLICATION pub_{database.name} FOR TABLE a WITH (publish_via_partition_root = true)")
    source.check()
    database.run("INSERT INTO a VALUES (1)")
    assert brief(database.read(source)) == [("r", "public.a", (1,))]


def test_rows_that_row_security_hides_are_not_passed_over(database: Database, reader: dict[str, Any]) -> None:
    user = reader["username"]
    database.run(
        "INSERT INTO a VALUES (1), (2)",
        f"ALTER ROLE {user} REPLICATION",
        f"GRANT SELECT ON a TO {user}",
        f"CREATE PUBLICATION pub_{database.name} FOR TABLE a WITH (publish_via_partition_root = true)",
        "ALTER TABLE a ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY first ON a USING (id = 1)",
    )
    source = database.source(tables=["public.a"], **reader)
    error = refusal(source)
    assert (error.code, error.exit_code) == ("missing-grant", 3)
    assert "row security" in str(error)
    database.run(f"ALTER ROLE {user} BYPASSRLS")
    source.check()


def test_a_table_that_others_inherit_from_is_refused(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (PRIMARY KEY (id)) INHERITS (a)")
    error = refusal(database.source())
    assert (error.code, error.exit_code) == ("inherited-table", 2)
    database.source(tables=["public.b"]).check()


def test_a_table_whose_updates_would_fail_is_not_published(database: Database) -> None:
    for keyless in ("id int", "id int PRIMARY KEY DEFERRABLE"):
        database.run(f"CREATE TABLE a ({keyless})")
        error = refusal(database.source())
        assert (error.code, error.exit_code) == ("no-replica-identity", 2)
        database.run("DROP TABLE a")


def test_a_deferrable_key_tells_no_rows_apart(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY DEFERRABLE)", "ALTER TABLE a REPLICA IDENTITY FULL")
    assert database.source().tables() == {"public.a": ()}


def test_a_column_that_the_index_of_the_key_only_carries_is_none_of_the_key(database: Database) -> None:
    database.run("CREATE TABLE a (id int, v int, PRIMARY KEY (id) INCLUDE (v))")
    assert database.source().tables() == {"public.a": ("id",)}


def test_an_identity_without_the_key_is_refused(database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY, code text NOT NULL UNIQUE)",
        "ALTER TABLE a REPLICA IDENTITY USING INDEX a_code_key",
    )
    assert refusal(database.source()).code == "identity-without-key"


def test_an_identity_whose_index_is_gone_is_none(database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int NOT NULL, CONSTRAINT unique_id UNIQUE (id))",
        "ALTER TABLE a REPLICA IDENTITY USING INDEX unique_id",
        "ALTER TABLE a DROP CONSTRAINT unique_id",
    )
    assert refusal(database.source()).code == "no-replica-identity"


def test_rows_of_a_partitioned_table_have_the_identity_of_their_partition(database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int NOT NULL, v text NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE a_1 PARTITION OF a FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE a_2 PARTITION OF a FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE a REPLICA IDENTITY FULL",
        "ALTER TABLE a_1 REPLICA IDENTITY FULL",
    )
    error = refusal(database.source())
    assert error.code == "no-replica-identity"
    assert "each of its partitions" in error.hint
    database.run("ALTER TABLE a_2 REPLICA IDENTITY FULL")
    database.source().check()
    database.run("ALTER TABLE a ADD PRIMARY KEY (id)", "CREATE UNIQUE INDEX other ON a_2 (v)")
    database.run("ALTER TABLE a_2 REPLICA IDENTITY USING INDEX other")
    assert refusal(database.source()).code == "identity-without-key"


def test_a_key_that_the_database_computes_is_refused(database: Database) -> None:
    database.run("CREATE TABLE a (v int, id int GENERATED ALWAYS AS (v * 2) STORED PRIMARY KEY)")
    assert refusal(database.source()).code == "generated-key"


def test_a_type_that_would_be_dropped_is_refused(database: Database) -> None:
    database.run("CREATE TYPE mood AS ENUM ('sad')", "CREATE DOMAIN several AS interval[]", "CREATE DOMAIN one AS mood")
    for kind in ("interval[]", "several", "one"):
        database.run(f"CREATE TABLE a (id int PRIMARY KEY, i {kind})")
        assert refusal(database.source()).code == "unsupported-type"
        database.run("DROP TABLE a")


def test_a_database_that_does_not_say_what_its_text_is(postgres: EmbeddedPostgres, database: Database) -> None:
    name = f"{database.name}_ascii"
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0")
        try:
            error = refusal(database.source(database=name))
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    assert (error.code, error.exit_code) == ("unsupported-encoding", 2)


def test_a_wait_for_others_ends_when_the_source_is_closed(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    with database.connect(autocommit=False) as other:
        other.execute("INSERT INTO a VALUES (1)")
        source = database.source(snapshot_mode="never")
        threading.Timer(1, source.close).start()
        # The slot cannot be made before that transaction has ended.
        assert list(source.pages(None)) == []
    assert database.slot() == {}


def test_a_publication_of_other_tables_is_left_alone(database: Database) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        f"CREATE PUBLICATION pub_{database.name} FOR TABLE b",
    )
    with pytest.raises(TailraceError) as raised:
        database.read(database.source(tables=["public.a"]))
    assert raised.value.code == "publication-differs"
    assert database.slot() == {}


def test_a_slot_of_somebody_else_is_left_alone(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    database.sql.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"slot_{database.name}"])
    with pytest.raises(Halt) as raised:
        database.read(database.source())
    assert raised.value.code == "slot-exists"
    assert database.slot()


def test_a_table_added_later_halts(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    since = database.read(database.source(tables=["public.a"]))[-1].checkpoint
    with pytest.raises(Halt) as raised:
        database.read(database.source(tables=["public.a", "public.b"]), since)
    assert raised.value.code == "tables-changed"


def test_undeploy_removes_slot_and_publication_and_can_be_repeated(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    source = database.source()
    database.read(source)
    lag = source.lag(None)
    assert lag["slot"] == f"slot_{database.name}"
    assert len(source.undeploy()) == 2
    assert nothing_left(database)
    assert source.undeploy() == []


def test_wal_level_and_full_servers_are_told(postgres: EmbeddedPostgres) -> None:
    with tempfile.TemporaryDirectory(prefix="tailrace-pg-") as folder:
        settings = {"fsync": "off", "wal_level": "replica", "max_replication_slots": "1"}
        with EmbeddedPostgres(Path(folder) / "server", settings=settings) as server:
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute("CREATE TABLE a (id int PRIMARY KEY)")
            options = Options(
                host="127.0.0.1", port=server.port, database="postgres", username="postgres", password=server.password
            )  # type: ignore[arg-type]
            source = PostgresSource(options, pipeline_id="p", topic_prefix="cdc", epoch=1)
            assert refusal(source).code == "wal-level"
            server.settings["wal_level"] = "logical"
            server.restart()
            source.check()
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
            assert refusal(source).code == "no-free-slot"


@pytest.mark.parametrize("name", ["Slot", "a-b", "x'; --", "", "a" * 64])
def test_slot_names_are_plain(name: str) -> None:
    with pytest.raises(ValidationError):
        Options(database="d", slot_name=name)
