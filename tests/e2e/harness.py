"""A pipeline under test: a database that changes step by step, the command run on it, and the comparison.

Each step of the load makes rows that no later step touches, so whatever a crash loses, doubles or brings
back in one step is still there to be seen at the end.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from tailrace.demo.postgres import EmbeddedPostgres
from tests.clients import in_files
from tests.sessions import COMMAND, QUICK

SINKS = """
- {sink_id: lake, sink_type: delta, mode: scd1, schema_evolution: alter, delta: {path: lake}}
- {sink_id: events, sink_type: delta, mode: append, delta: {path: events}}
"""

_SCHEMA = """
create table items (id bigint primary key, name text not null, price numeric(10,2), step int not null, bio text);
create table parts (item bigint, no int, qty int, primary key (item, no));
create table scratch (id bigint primary key, v text);
alter table items alter column bio set storage external;
"""


@dataclass
class Shop:
    """A database, a pipeline file over it, and the load."""

    folder: Path
    server: EmbeddedPostgres
    seed: int
    database: str = field(default_factory=lambda: f"kill_{uuid.uuid4().hex[:10]}")
    step: int = 0
    max_rows: int = 400
    sinks: str = SINKS

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        with psycopg.connect(self.server.dsn("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(self.database)))
        with self.connect() as connection:
            connection.execute(_SCHEMA)
        self.pipeline = self.folder / "pipeline.yaml"
        self.pipeline.write_text(
            textwrap.dedent(
                f"""
                pipeline_id: kill
                source:
                  source_type: postgres
                  host: 127.0.0.1
                  port: {self.server.port}
                  database: {self.database}
                  username: {self.server.user}
                  password: ${{SHOP_PASSWORD}}
                  slot_name: {self.database}
                  publication_name: {self.database}
                  tables: [public.items, public.parts, public.scratch]
                sinks:
                """
            )
            + textwrap.indent(
                self.sinks.replace("PORT", str(self.server.port)).replace("DATABASE", self.database), "  "
            )
        )
        self.platform = self.folder / "platform.yaml"
        platform = {
            "slice": {"max_rows": self.max_rows, "interval_seconds": 0.2},
            "health_port": 0,
            "spark": {"master": "local[2]", "conf": COMMAND},
        }
        # JSON is YAML.
        self.platform.write_text(json.dumps(platform))

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """Return a connection to the shop."""
        return psycopg.connect(self.server.dsn(self.database))

    def change(self) -> None:
        """Do one step: creates, updates, deletes, a key change, a long value left alone, now and then a truncate."""
        self.step += 1
        base, chance = self.step * 1000, self._chance
        with self.connect() as connection:
            for n in range(60):
                bio = "b" * 5000 + str(base + n) if n % 10 == 0 else None
                row = (base + n, f"item {n} ☃", n + 0.25, self.step, bio)
                connection.execute("insert into items values (%s, %s, %s, %s, %s)", row)
                connection.execute("insert into parts values (%s, 1, %s)", (base + n, n))
            connection.commit()
            for n in range(0, 60, 3):
                for _ in range(chance.randrange(1, 4)):
                    query = "update items set name = %s where id = %s"
                    connection.execute(query, (f"renamed {chance.randrange(9)}", base + n))
            connection.execute("delete from items where id %% 7 = 3 and step = %s", (self.step,))
            connection.execute("delete from parts where item %% 1000 >= 50 and item / 1000 = %s", (self.step,))
            connection.execute("update items set id = id + 500 where id in (%s, %s)", (base + 8, base + 9))
            connection.commit()
            if self.step % 4 == 0:
                connection.execute("truncate scratch")
            connection.execute("insert into scratch values (%s, 'x')", (self.step,))
            connection.commit()

    def cdc(self, *words: str, failpoints: str = "", timeout: float = 900) -> subprocess.CompletedProcess[str]:
        """Run the command to its end, or until a failpoint kills it."""
        command = [sys.executable, "-m", "tailrace.cli.main", *words, "--platform-config", str(self.platform)]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.env(failpoints),
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the command and leave it running."""
        command = [sys.executable, "-m", "tailrace.cli.main", *words, "--platform-config", str(self.platform)]
        with (self.folder / "run.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, env=self.env(), stdout=log, stderr=log)

    def env(self, failpoints: str = "") -> Mapping[str, str]:
        """Return the environment of a run."""
        armed = {"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": failpoints} if failpoints else {}
        return {**os.environ, **QUICK, "SHOP_PASSWORD": self.server.password, **armed}

    def finish(self, *words: str) -> dict[str, object]:
        """Run to the head; return the report."""
        done = self.cdc("run", str(self.pipeline), "--once", "--json", *words)
        assert done.returncode == 0, done.stderr[-3000:]
        report: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
        return report

    def differences(self) -> list[str]:
        """Compare every table with the source, and the event log with itself; return what differs."""
        found = []
        lake, events = (in_files("delta", self.folder / name) for name in ("lake", "events"))
        for table, columns in {"items": "id,name,price,step,bio", "parts": "item,no,qty", "scratch": "id,v"}.items():
            names = columns.split(",")
            with self.connect() as connection:
                source = Counter(
                    connection.execute(sql.SQL("select {} from {}").format(sql.SQL(columns), sql.Identifier(table)))
                )
            target = Counter(tuple(row[name] for name in names) for row in lake.read(table))
            found += [f"{table}: lost {row[:2]}" for row in (source - target)]
            found += [f"{table}: left over {row[:2]}" for row in (target - source)]
            told = ("_cdc_op", "_cdc_position", *names[: 2 if table == "parts" else 1])
            every = Counter(tuple(row[name] for name in told) for row in events.read(table))
            found += [] if every else [f"{table}: no events"]
            found += [f"{table}: doubled event {event}" for event, times in every.items() if times > 1]
        return found
