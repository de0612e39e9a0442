"""Connections by name: what a pipeline reads from and writes to, with the keys that a file has for it."""

from __future__ import annotations

import sys

from tailrace.config.problem import nearest, quoted
from tailrace.core.errors import Misconfigured


class Connection:
    """A system to read from or to write to: its kind, and the keys that a file has for it."""

    def __init__(self, name: str, kind: str, **settings: object) -> None:
        self.name = name
        self.kind = kind
        self.settings = {key: value for key, value in settings.items() if value is not None}

    def __repr__(self) -> str:
        """Show no settings: there may be a password among them."""
        return f"{type(self).__name__}({self.name!r}, kind={self.kind!r})"

    def same(self, other: Connection) -> bool:
        """Say whether both are one and the same system."""
        return (self.name, self.kind, self.settings) == (other.name, other.kind, other.settings)

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"connection {quoted(self.name)}"


class KafkaConnection(Connection):
    """The brokers of a Kafka cluster; what is not said here, the platform says."""

    def __init__(
        self,
        name: str,
        *,
        bootstrap_servers: str | None = None,
        schema_registry_url: str | None = None,
        **settings: object,
    ) -> None:
        own = {"bootstrap_servers": bootstrap_servers, "schema_registry_url": schema_registry_url}
        super().__init__(name, "kafka", **own, **settings)


class PostgresConnection(Connection):
    """A PostgreSQL database, by its `url` or by `host`, `port`, `database`, `username` and `password`."""

    def __init__(self, name: str, *, url: str | None = None, **settings: object) -> None:
        super().__init__(name, "postgres", url=url, **settings)


_CONNECTIONS: dict[tuple[str, str], Connection] = {}
"""By module and name: two modules may each have a connection of one name."""


def connection(declared: type) -> Connection:
    """Declare a connection: a class with a `kind` and the keys of that kind, known by the class's name."""
    settings = {key: value for key, value in vars(declared).items() if not key.startswith("_")}
    kind = settings.pop("kind", None)
    where = f"{declared.__module__}:{declared.__name__}"
    if not isinstance(kind, str):
        text = f'{where}: connection has no "kind"'
        raise Misconfigured("missing-setting", text, 'Write kind = "postgres", or what else it is.')
    return _register(Connection(declared.__name__, kind, **settings), declared.__module__)


def register_connection(known: Connection) -> Connection:
    """Let pipelines use `known` by its name."""
    return _register(known, sys._getframe(1).f_globals["__name__"])


def _register(known: Connection, module: str) -> Connection:
    before = _CONNECTIONS.get((module, known.name), known)
    # In a notebook a cell is run again to change what it says.
    if module != "__main__" and not before.same(known):
        text = f"{module}: {known.title} is declared twice"
        raise Misconfigured("duplicate-connection", text, "Give each a name of its own.")
    _CONNECTIONS[module, known.name] = known
    return known


def find_connection(wanted: object, module: str, where: str) -> Connection:
    """Return the connection `wanted`: itself, or by the name that it has in `module`, or else in one other."""
    if isinstance(wanted, Connection):
        return wanted
    if not isinstance(wanted, str):
        text = f"{where}: {quoted(wanted)} is not a connection"
        raise Misconfigured("unknown-connection", text, "Give its name, or the connection itself.")
    if (module, wanted) in _CONNECTIONS:
        return _CONNECTIONS[module, wanted]
    found = [(there, known) for (there, name), known in _CONNECTIONS.items() if name == wanted]
    if not found:
        names = sorted({name for _, name in _CONNECTIONS})
        near = nearest(wanted, names)
        known = f"Known are: {', '.join(names)}." if names else "There are none; declare it with tailrace.connection."
        hint = f"Did you mean {quoted(near)}?" if near else known
        raise Misconfigured("unknown-connection", f"{where}: there is no connection {quoted(wanted)}", hint)
    if any(not found[0][1].same(other) for _, other in found):
        modules = ", ".join(there for there, _ in found)
        text = f"{where}: connection {quoted(wanted)} is another one in each of {modules}"
        raise Misconfigured(
            "duplicate-connection", text, "Import the one that is meant, and give it instead of its name."
        )
    return found[0][1]
