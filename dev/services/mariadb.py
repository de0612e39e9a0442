"""A MariaDB server with a row binlog: a database, a user for tests and one that may read the binlog."""

from __future__ import annotations

import getpass
from pathlib import Path

import pymysql

from dev.services import packages, process

SETTINGS = (
    "--bind-address=127.0.0.1",
    "--server-id=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    # Column names in the binlog: connectors check for it, and it makes a captured binlog readable by itself.
    "--binlog-row-metadata=FULL",
    "--character-set-server=utf8mb4",
    "--default-time-zone=+00:00",
    "--innodb-buffer-pool-size=64M",
    "--innodb-flush-log-at-trx-commit=0",
    "--performance-schema=OFF",
    "--skip-name-resolve",
    # Clients take TLS where it is offered, and a handshake with the library in this build takes a third of a second.
    "--skip-ssl",
)


class MariaDb:
    """A server on `folder`; `user` owns `database`, `replication_user` reads it all and the binlog."""

    name = "mariadb"
    host = "127.0.0.1"
    database = "test"
    user = "tester"
    password = "tester-secret"
    replication_user = "replicator"
    replication_password = "replicator-secret"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self.port,) = process.ports(folder, 1)
        self._process = process.Process(self.name, folder / "mariadb.log")

    @property
    def addresses(self) -> dict[str, str]:
        return {
            "host": self.host, "port": str(self.port), "database": self.database, "user": self.user,
            "password": self.password, "replication_user": self.replication_user,
            "replication_password": self.replication_password,
        }  # fmt: skip

    @property
    def group(self) -> int | None:
        return self._process.group

    def start(self) -> None:
        home = next(packages.ensure("mariadb").rglob("mariadb-install-db")).parents[1]
        for name in ("mariadbd", "my_print_defaults", "resolveip"):
            (home / "bin" / name).chmod(0o755)
        data, passing = self.folder / "data", self.folder / "tmp"
        passing.mkdir(exist_ok=True)
        if not data.exists():
            made = self.folder / "data.unfinished"
            install = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
            command = ["sh", str(home / "scripts" / "mariadb-install-db"), *_where(home, made, passing), *install]
            process.run(self.name, command, self.folder / "install.log")
            made.rename(data)
        users = self.folder / "users.sql"
        users.write_text(self._users())
        # A path to a socket may be about 100 bytes long, a temporary folder's may be longer: relative to the data.
        here = [f"--port={self.port}", "--socket=mariadb.sock", "--pid-file=mariadb.pid", f"--init-file={users}"]
        command = [str(home / "bin" / "mariadbd"), *_where(home, data, passing), *here, *SETTINGS]
        self._process.start(command, lambda: self.connect().close())

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        """End the server as a crash would."""
        self._process.kill()

    def connect(self, database: str | None = None) -> pymysql.Connection:
        """Return a connection of the test user, which may make databases."""
        return pymysql.connect(
            host=self.host, port=self.port, user=self.user, password=self.password,
            database=database or self.database, autocommit=True, connect_timeout=5,
        )  # fmt: skip

    def _users(self) -> str:
        # Run at every start, one statement to a line, and no business of anyone who reads the binlog.
        return (
            "SET SESSION sql_log_bin = 0;\n"
            f"CREATE DATABASE IF NOT EXISTS {self.database};\n"
            f"CREATE USER IF NOT EXISTS '{self.user}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO '{self.user}'@'%';\n"
            f"CREATE USER IF NOT EXISTS '{self.replication_user}'@'%' IDENTIFIED BY '{self.replication_password}';\n"
            "GRANT SELECT, RELOAD, LOCK TABLES, SHOW DATABASES, REPLICATION SLAVE, BINLOG MONITOR"
            f" ON *.* TO '{self.replication_user}'@'%';\n"
        )


def _where(home: Path, data: Path, passing: Path) -> list[str]:
    # A server that starts removes what looks like a temporary table from its tmpdir, also another server's.
    places = [f"--basedir={home}", f"--datadir={data}", f"--tmpdir={passing}"]
    return ["--no-defaults", *places, f"--user={getpass.getuser()}"]
