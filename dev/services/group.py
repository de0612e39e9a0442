"""Several servers together: started in the order they need, stopped in the other, whatever happens between."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from dev.services.catalog import Catalog
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.mariadb import MariaDb
from dev.services.postgres import Postgres
from dev.services.registry import Registry
from dev.services.s3 import S3

NAMES = ("kafka", "registry", "connect", "mariadb", "postgres", "s3", "catalog")
NEEDS = {"connect": ("kafka",)}


class Service(Protocol):
    """A server that can be stopped and started again, at the same address."""

    name: str

    @property
    def addresses(self) -> dict[str, str]: ...

    @property
    def group(self) -> int | None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class Group:
    """Servers under one folder, each made when it is first asked for; none is started by asking."""

    def __init__(self, folder: Path, *, secure: bool = False) -> None:
        self._folder = folder.absolute()
        self._secure = secure
        self._asked: list[str] = []

    @cached_property
    def kafka(self) -> Kafka:
        return Kafka(self._folder / "kafka", secure=self._secure)

    @cached_property
    def registry(self) -> Registry:
        return Registry(self._folder / "registry")

    @cached_property
    def connect(self) -> Connect:
        return Connect(self._folder / "connect", self.kafka)

    @cached_property
    def mariadb(self) -> MariaDb:
        return MariaDb(self._folder / "mariadb")

    @cached_property
    def postgres(self) -> Postgres:
        return Postgres(self._folder / "postgres")

    @cached_property
    def s3(self) -> S3:
        return S3(self._folder / "s3")

    @cached_property
    def catalog(self) -> Catalog:
        return Catalog(self._folder / "catalog")

    def named(self, name: str) -> Service:
        service: Service = getattr(self, name)
        return service

    def start(self, *names: str) -> None:
        """Start the named services and what they need; one that runs already is left alone."""
        for name in in_order(names):
            service = self.named(name)
            if name not in self._asked:
                self._asked.append(name)
            service.start()

    def stop(self) -> None:
        """Stop every service that was asked to start, the latest first, however the others take it."""
        with contextlib.ExitStack() as stack:
            for name in self._asked:
                stack.callback(self.named(name).stop)
        self._asked.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def in_order(names: Iterable[str]) -> list[str]:
    """Return the services asked for and those they need, in the order to start them; all if none is named."""
    wanted = set(names) or set(NAMES)
    if unknown := sorted(wanted - set(NAMES)):
        raise ValueError(f"unknown service {', '.join(unknown)}; known are {', '.join(NAMES)}")
    wanted |= {needed for name in wanted for needed in NEEDS.get(name, ())}
    return [name for name in NAMES if name in wanted]


@contextlib.contextmanager
def on_demand(*, folder: Path | None = None, secure: bool = False) -> Iterator[Group]:
    """Give a group of which nothing runs yet; what was started of it is stopped at the end.

    Its data is in `folder`, or in a temporary one that is deleted at the end.
    """
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-services-")))
        yield stack.enter_context(Group(place, secure=secure))


@contextlib.contextmanager
def running(*names: str, folder: Path | None = None, secure: bool = False) -> Iterator[Group]:
    """Start the named services, all if none is named; stop them at the end, or when one of them does not start."""
    with on_demand(folder=folder, secure=secure) as group:
        group.start(*names)
        yield group
