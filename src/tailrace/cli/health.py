"""What `cdc health` makes of the answers of servers and of running pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tailrace.config.platform import PlatformConfig
from tailrace.core.errors import Halt, NotReady, TailraceError

Answer = dict[str, Any]


def servers(platform: PlatformConfig) -> list[Answer]:
    """Return how the servers are that `platform` relies on."""
    if platform.transport_mode != "kafka":
        return []
    from tailrace.runtime.probe import probed

    return [one.to_json() for one in probed(platform)]


def lines(servers: Sequence[Answer]) -> list[dict[str, object]]:
    """Return a line for each server."""
    return [{"pipeline": None, "component": server["component"], **_state(server)} for server in servers]


def components(found: Sequence[Answer]) -> list[dict[str, object]]:
    """Return a line for each part of each pipeline: its state, and what is wrong with it."""
    return [line for answer in found for line in _components(answer)]


def first_failing(servers: Sequence[Answer], found: Sequence[Answer]) -> TailraceError | None:
    """Return the error that decides the exit code of `cdc health`."""
    for server in servers:
        if error := server.get("error"):
            return Halt("not-ready", f"{server['component']}: {error['code']}: {error['message']}", error["hint"])
    if not servers and not found:
        return NotReady(
            "not-running",
            "no pipeline with a health server runs under control.root",
            "Start one with cdc run, or name the platform file that it runs with by --platform-config.",
        )
    for answer in found:
        for part in answer["failing"]:
            return Halt(
                "not-ready",
                f'{part["part"]} of pipeline "{answer["pipeline_id"]}": {part["code"]}: {part["message"]}',
                part["hint"],
            )
    return None


def _components(answer: Answer) -> Iterator[dict[str, object]]:
    pipeline = answer["pipeline_id"]
    yield {"pipeline": pipeline, "component": "pipeline", "status": answer["status"]}
    yield {"pipeline": pipeline, "component": "source", **_state(answer["source"])}
    if registry := answer.get("schema_registry"):
        yield {"pipeline": pipeline, "component": "schema registry", **_state(registry)}
    for sink in answer["sinks"]:
        lag = sum(row["lag"] for row in answer["consumer_lag"] if row["sink_id"] == sink["sink_id"])
        line = {"pipeline": pipeline, "component": f"target {sink['sink_id']}", **_state(sink)}
        yield {**line, "lag_events": lag} if answer["consumer_lag"] else line


def _state(part: Answer) -> dict[str, object]:
    error = part.get("error")
    return {"status": part["status"], **({"error": f"{error['code']}: {error['message']}"} if error else {})}
