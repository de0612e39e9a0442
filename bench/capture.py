"""From a commit in PostgreSQL to the landed log: events per second, next to an engine that only counts.

Two slots are made, then the load is committed, then each reads the same backlog in the same process: the
bare Debezium engine with a consumer that counts, and our source with the pump and its log. Both are
measured from their first batch to their last, after a round of the same kind that is not counted.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import jpype
import psycopg
from pydantic import SecretStr

from tailrace.control.checkpoints import Checkpoints
from tailrace.core.checkpoint import Checkpoint
from tailrace.demo.postgres import EmbeddedPostgres
from tailrace.log.landed import LandedLog
from tailrace.runtime.pump import pump
from tailrace.sources._debezium.jvm import POSTGRES, java
from tailrace.sources._postgres_engine import engine_config
from tailrace.sources.postgres import Options, PostgresSource

_COUNTER = """
package bench;
public class Counter implements io.debezium.engine.DebeziumEngine.ChangeConsumer {
    public volatile long events, first, last;
    public boolean supportsTombstoneEvents() { return true; }
    public void handleBatch(java.util.List records, io.debezium.engine.DebeziumEngine.RecordCommitter committer)
            throws InterruptedException {
        if (first == 0) first = System.nanoTime();
        for (int i = 0; i < records.size(); i++) committer.markProcessed(records.get(i));
        committer.markBatchFinished();
        events += records.size();
        last = System.nanoTime();
    }
}
"""

_TABLE = """
create table orders (id bigint primary key, customer bigint, status text, total numeric(12,2), quantity int,
                     placed_at timestamptz, due date, note text, paid boolean, weight double precision)
"""

_LOAD = """
insert into orders select n, n %% 1000, 'paid', n / 7.0, n, now(), current_date, 'order ' || n || ' for the neighbours',
                          n %% 2 = 0, n / 3.0 from generate_series(%s::bigint, %s::bigint) n
"""


def run(events: int) -> dict[str, object]:
    """Return the figures for `events` inserts in transactions of a thousand."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
    try:
        with EmbeddedPostgres(folder / "pg", settings={"fsync": "off"}) as server:
            rounds = [_round(server, folder / str(n), f"round{n}", events) for n in range(2)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rounds[-1]


def _round(server: EmbeddedPostgres, folder: Path, database: str, events: int) -> dict[str, object]:
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(f"create database {database}")
    options = Options(
        host="127.0.0.1",
        port=server.port,
        database=database,
        username=server.user,
        password=SecretStr(server.password),
        tables=("public.orders",),
        slot_name=f"{database}_ours",
        publication_name="bench",
        snapshot_mode="no_data",
    )
    log, checkpoints = LandedLog(folder / "log", "bench", 1), Checkpoints(folder)
    with psycopg.connect(server.dsn(database), autocommit=True) as connection:
        connection.execute(_TABLE)
        _pump(options, log, checkpoints)
        connection.execute(f"select pg_create_logical_replication_slot('{database}_bare', 'pgoutput')")
        for start in range(0, events, 1000):
            connection.execute(_LOAD, (start + 1, min(start + 1000, events)))
    bare = _count(options.model_copy(update={"slot_name": f"{database}_bare"}), events)
    ours = _pump(options, log, checkpoints)
    counted = sum(count for piece in [log.slice(-1, events * 2)] if piece for count in piece.contents.counts.values())
    return {
        "events": events,
        "bare_events_per_second": round(events / bare),
        "events_per_second": round(events / ours),
        "ratio": round(bare / ours, 3),
        "equal": counted == events,
    }


def _pump(options: Options, log: LandedLog, checkpoints: Checkpoints) -> float:
    source = PostgresSource(options, pipeline_id="bench", topic_prefix="cdc", epoch=1)
    times: list[float] = []

    class Timed:
        name = source.name

        def pages(self, since: Checkpoint | None, until: str | None = None):  # type: ignore[no-untyped-def]
            for page in source.pages(since, until):
                if page.rows.num_rows and not times:
                    times.append(time.monotonic())
                yield page
                if page.rows.num_rows:
                    times.append(time.monotonic())

        acknowledge, head, close = source.acknowledge, source.head, source.close

    pump(Timed(), log, checkpoints, lambda *_: None, source.head())
    return times[-1] - times[0] if times else 0.0


def _count(options: Options, events: int) -> float:
    made = java(POSTGRES)
    compiler = jpype.JClass("org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(made.Consumer.class_.getClassLoader())
    compiler.cook(_COUNTER)
    counter = jpype.JClass(compiler.getClassLoader().loadClass("bench.Counter"))()
    properties = made.Properties()
    for name, value in engine_config(options, ["public.orders"], 16_384, 10.0, fresh=False).items():
        properties.setProperty(name, value)
    properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore")
    properties.setProperty("offset.flush.interval.ms", "0")
    form = jpype.JClass("io.debezium.engine.format.ChangeEventFormat").of(jpype.JClass("io.debezium.embedded.Connect"))
    handler = jpype.JObject(counter, "io.debezium.engine.DebeziumEngine$ChangeConsumer")
    built = jpype.JClass("io.debezium.engine.DebeziumEngine").create(form).using(properties).notifying(handler).build()
    thread = jpype.JClass("java.lang.Thread")(jpype.JObject(built, "java.lang.Runnable"))
    thread.start()
    while counter.events < events:
        time.sleep(0.05)
    built.close()
    return float(counter.last - counter.first) / 1e9
