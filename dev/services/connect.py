"""Kafka Connect, distributed, one worker, with the Debezium connectors and the Avro converter as plugins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from dev.services import http, packages, process
from dev.services.java import class_path, java, properties
from dev.services.kafka import LOG_SETTINGS, Kafka
from dev.services.registry import Registry

PLUGINS = ("debezium-postgres", "debezium-mariadb", "debezium-mysql", "avro-converter")


class Connect:
    """A worker on `folder` that keeps its state in `kafka`; `url` is its REST interface."""

    name = "connect"

    def __init__(self, folder: Path, kafka: Kafka) -> None:
        self.folder = folder
        self._kafka = kafka
        (self._port,) = process.ports(folder, 1)
        self.url = f"http://127.0.0.1:{self._port}"
        self.log = folder / "connect.log"
        self._process = process.Process(self.name, self.log)

    @property
    def addresses(self) -> dict[str, str]:
        return {"url": self.url}

    @property
    def group(self) -> int | None:
        return self._process.group

    def start(self) -> None:
        jars = packages.ensure("kafka")
        settings = self.folder / "connect.properties"
        self._link_plugins()
        settings.write_text(properties(self._settings().items()))
        command = [
            *java(512, LOG_SETTINGS, "-Dlog.level=WARN"), *class_path(jars),
            "org.apache.kafka.connect.cli.ConnectDistributed", str(settings),
        ]  # fmt: skip
        # The list of connectors, unlike that of plugins, is known only once the worker has joined its group.
        self._process.start(command, lambda: http.call("GET", f"{self.url}/connectors", timeout=5))

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        """End the worker as a crash would."""
        self._process.kill()

    def plugins(self) -> set[str]:
        return {str(plugin["class"]) for plugin in http.call("GET", f"{self.url}/connector-plugins")}

    def put(self, name: str, settings: Mapping[str, str], within: timedelta = timedelta(seconds=60)) -> None:
        """Make or change a connector and wait until it and its task run; its topics get one partition unless told."""
        topics = {"topic.creation.default.replication.factor": "1", "topic.creation.default.partitions": "1"}
        self._change("PUT", f"{name}/config", within, {**topics, **settings})

        def runs(connector: str, tasks: list[str]) -> bool:
            if "FAILED" in (connector, *tasks):
                raise process.StartFailed(f'connector "{name}" failed: {self.status(name)}')
            return bool(tasks) and {connector, *tasks} == {"RUNNING"}

        self._until(name, runs, within)

    def delete(self, name: str, within: timedelta = timedelta(seconds=60)) -> None:
        """Remove a connector; on return its task has let go of the database."""
        self._change("PUT", f"{name}/stop", within)
        self._until(name, lambda connector, tasks: connector == "STOPPED" and not tasks, within)
        self._change("DELETE", name, within)

    def status(self, name: str) -> dict[str, Any]:
        """Return what Connect says about a connector and its tasks; empty while it does not know it."""
        try:
            return dict(http.call("GET", f"{self.url}/connectors/{name}/status"))
        except http.Refused as error:
            if error.status != 404:
                raise
            return {}

    def _change(self, method: str, path: str, within: timedelta, body: object = None) -> None:
        deadline = time.monotonic() + within.total_seconds()
        while True:
            try:
                http.call(method, f"{self.url}/connectors/{path}", body)
            except http.Refused as error:
                # The worker is joining its group again, which every change of a connector makes it do.
                if error.status != 409 or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def _until(self, name: str, done: Callable[[str, list[str]], bool], within: timedelta) -> None:
        deadline = time.monotonic() + within.total_seconds()
        while True:
            status = self.status(name)
            tasks = [str(task["state"]) for task in status.get("tasks", [])]
            if done(str(status.get("connector", {}).get("state", "UNKNOWN")), tasks):
                return
            if time.monotonic() > deadline:
                raise process.StartFailed(f'connector "{name}" is not as asked: {status}\n{process.tail(self.log)}')
            time.sleep(0.1)

    def _link_plugins(self) -> None:
        # Connect takes each folder in the plugin path for one plugin, with a class loader of its own.
        (self.folder / "plugins").mkdir(parents=True, exist_ok=True)
        for name in PLUGINS:
            link = self.folder / "plugins" / name
            link.unlink(missing_ok=True)
            link.symlink_to(next(packages.ensure(name).rglob("*.jar")).parent)

    def _settings(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self._kafka.bootstrap,
            "group.id": "connect",
            "listeners": self.url,
            "plugin.path": str(self.folder / "plugins"),
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "offset.flush.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            **{f"{topic}.storage.topic": f"connect-{topic}" for topic in ("config", "offset", "status")},
            **{f"{topic}.storage.replication.factor": "1" for topic in ("config", "offset", "status")},
        }


def json_converters(*, schemas: bool) -> dict[str, str]:
    """Return the connector settings for JSON messages, with or without the schema block in each."""
    return {
        f"{part}.{name}": value
        for part in ("key.converter", "value.converter")
        for name, value in (("schemas.enable", str(schemas).lower()),)
    } | dict.fromkeys(("key.converter", "value.converter"), "org.apache.kafka.connect.json.JsonConverter")


def avro_converters(registry: Registry) -> dict[str, str]:
    """Return the connector settings for Avro messages with the five-byte header: zero, then the schema's id."""
    settings = {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        ".apicurio.registry.url": registry.native_url,
        ".apicurio.registry.auto-register": "true",
        ".apicurio.registry.find-latest": "true",
        ".apicurio.registry.as-confluent": "true",
        ".apicurio.registry.use-id": "contentId",
        ".apicurio.registry.headers.enabled": "false",
    }
    return {part + name: value for part in ("key.converter", "value.converter") for name, value in settings.items()}
