"""Whether the servers of a platform answer, asked at once and without a pipeline: brokers, schema registry, Connect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tailrace.config.platform import PlatformConfig
from tailrace.core.errors import TailraceError
from tailrace.log._registry import Registry
from tailrace.log._settings import for_librdkafka
from tailrace.runtime.inlet import missing_extra
from tailrace.sources._connect import Connector

SECONDS = 5.0
"""How long one of them may take."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What came of asking one server: it is healthy if there is no `error`."""

    component: str
    error: TailraceError | None = None

    def to_json(self) -> dict[str, object]:
        """Return the form that `cdc health` prints."""
        if self.error is None:
            return {"component": self.component, "status": "healthy"}
        error = {"code": self.error.code, "message": str(self.error), "hint": self.error.hint}
        return {"component": self.component, "status": "unhealthy", "error": error}


def probed(platform: PlatformConfig) -> list[Probed]:
    """Return how each server is that `platform` relies on; none, if it needs no server."""
    parts = list(_parts(platform)) if platform.transport_mode == "kafka" else []
    with ThreadPoolExecutor(max(len(parts), 1), thread_name_prefix="probe") as pool:
        return list(pool.map(lambda part: _answer(*part), parts))


def _parts(platform: PlatformConfig) -> Iterator[tuple[str, Callable[[], object]]]:
    try:
        from tailrace.log._broker import Broker
    except ModuleNotFoundError as error:
        raise missing_extra(error) from error
    yield "kafka", lambda: Broker(for_librdkafka(platform.kafka), {}).cluster(SECONDS)
    # That its address has a default is no claim that there is one.
    if platform.connector.value_format == "avro" or "schema_registry_url" in platform.kafka.model_fields_set:
        yield "schema registry", lambda: Registry(platform.kafka.schema_registry_url, Path()).reach(SECONDS)
    yield "connect", lambda: Connector(platform.connector, "").reach(SECONDS)


def _answer(component: str, ask: Callable[[], object]) -> Probed:
    try:
        ask()
    except TailraceError as error:
        return Probed(component, error)
    return Probed(component)
