"""The platform file as values: how pipelines are run, the same for all of them.

Every key has a default that suits one machine with nothing to install, so the file is optional.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tailrace.config.model import Model, NotYet, Secret
from tailrace.config.pipeline import RetryConfig

_UNREAD = NotYet("has no effect", "What is read ahead is bounded by slice.max_rows.", refuse=False)


class KafkaConfig(Model):
    """The brokers and the schema registry; for `source_type: kafka`."""

    bootstrap_servers: str = "localhost:9092"
    """The brokers, comma-separated."""
    schema_registry_url: str = "http://localhost:8081"
    """The schema registry, in the way of Confluent's API; it may hold user and password: `https://user:password@host`."""
    group_id: str = "cdc-platform"
    """The consumer group under which tools that show lag find a pipeline. If unset, `cdc-platform-<pipeline_id>`."""
    auto_offset_reset: Annotated[
        Literal["earliest", "latest"],
        NotYet(
            "is not in this release", "A target built from the end of a topic would lack its rows.", values=("latest",)
        ),
    ] = "earliest"
    """Where to begin with a topic that was never read."""
    enable_idempotence: bool = True
    """Whether dead letters are produced idempotently."""
    acks: Annotated[
        Literal["all", "1", "0"],
        NotYet("is not in this release", "A dead letter must be safe before it is passed over.", values=("1", "0")),
    ] = "all"
    """Which acknowledgements a produced dead letter waits for."""
    topic_num_partitions: Annotated[int, Field(ge=1)] = 1
    """Partitions of a topic that is created."""
    topic_replication_factor: Annotated[int, Field(ge=1)] = 1
    """Replicas of a topic that is created."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How brokers are spoken to."""
    auth_mechanism: Literal["none", "sasl_plain", "sasl_scram_256", "sasl_scram_512", "sasl_oauthbearer"] = "none"
    """How the client proves who it is."""
    sasl_username: str | None = None
    """The user; with `sasl_oauthbearer`, the client's id."""
    sasl_password: Secret | None = None
    """The user's password; with `sasl_oauthbearer`, the client's secret."""
    sasl_oauth_token_endpoint_url: str | None = None
    """With `sasl_oauthbearer`: where a token is asked for, with the client's id and secret; HTTPS, or HTTP on loopback.
    """
    sasl_oauth_scope: str | None = None
    """With `sasl_oauthbearer`: the scope that is asked for."""
    ssl_ca_location: Path | None = None
    """The certificates of the authorities that are trusted."""
    ssl_certificate_location: Path | None = None
    """The client's own certificate."""
    ssl_key_location: Path | None = None
    """The key of the client's certificate."""


class ConnectorConfig(Model):
    """Kafka Connect, where the capture runs; for `transport_mode: kafka`."""

    connect_url: str = "http://localhost:8083"
    """Its REST address."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How long one request may take, and how long a connector may take to run or to stop."""
    retry_max_attempts: Annotated[int, Field(ge=1)] = 5
    """How often a request is tried while Kafka Connect is busy or does not answer."""
    retry_wait_seconds: Annotated[float, Field(ge=0)] = 2.0
    """The wait between two tries."""
    value_format: Literal["json", "avro"] = "json"
    """How messages are written: `json` with schema blocks, which needs nothing but Kafka, or `avro`, with
    `kafka.schema_registry_url` and Confluent's converter installed in Kafka Connect."""
    settings: dict[str, str] = Field(default_factory=dict)
    """Further settings of the connector, over those that are made here; for another converter, for example."""


class DlqConfig(Model):
    """What happens to an event that can never be applied."""

    enabled: bool = True
    """Keep it aside and go on; `false` halts the pipeline at such an event."""
    topic_suffix: str = "dlq"
    """Ends the name of a dead-letter topic."""
    max_retries: Annotated[
        int,
        Field(ge=0),
        NotYet("has no effect", "A bad event is not retried, and other errors follow retry.", refuse=False),
    ] = 3
    """Retries before an event is put aside. An event that can never be applied is put aside at once."""
    include_headers: bool = True
    """Whether a dead letter carries diagnostic headers."""


class ControlConfig(Model):
    """Where a pipeline keeps what it must remember."""

    root: Path = Path("./.tailrace")
    """The folder; each pipeline has one below it, named after its `pipeline_id`."""
    audit_dsn: Secret | None = None
    """Where the catalogue and the audit of files are kept: a PostgreSQL database, `postgresql://user:password@host/name`,
    in a schema `tailrace_files_<log>`. An SQLite file below `root` if unset. It must not change for a pipeline."""


class LogConfig(Model):
    """The change log between source and targets."""

    root: Path | None = None
    """The folder of change logs, one below it per pipeline; `<control.root>/<pipeline_id>/log` if unset."""
    retention_days: Annotated[float, Field(gt=0)] | None = None
    """Remove log files older than this once every target has applied them; keep them all if unset."""


class SparkConfig(Model):
    """The Spark session that targets are written with."""

    master: str = "local[*]"
    """Where Spark runs."""
    conf: dict[str, str] = Field(default_factory=dict)
    """Further Spark settings. They show in Spark's own pages and logs: no secrets here."""
    jars: Literal["auto", "provided"] = "auto"
    """`auto` fetches what the targets need, once; `provided` leaves it to the cluster."""


class SliceConfig(Model):
    """How much of the change log is applied at a time."""

    max_rows: Annotated[int, Field(ge=1)] = 500_000
    """The most events in one slice."""
    interval_seconds: Annotated[float, Field(ge=0)] = 1.0
    """The wait for new events once everything is applied."""


class LimitsConfig(Model):
    """Bounds that keep a bad source from taking the pipeline down."""

    max_event_bytes: Annotated[int, Field(ge=1024)] = 32 * 1024 * 1024
    """An event with a longer message is rejected."""
    max_rejects: Annotated[int, Field(ge=0)] = 1000
    """The pipeline halts when more events than this have been put aside."""


class PlatformConfig(Model):
    """How pipelines are run."""

    transport_mode: Literal["embedded", "kafka"] = "embedded"
    """What carries changes from a database: `embedded` needs nothing installed; with `kafka`, a Debezium connector that
    `cdc deploy` registers with Kafka Connect fills topics, which a run reads."""
    kafka: KafkaConfig = KafkaConfig()
    """The brokers and the schema registry."""
    connector: ConnectorConfig = ConnectorConfig()
    """Kafka Connect."""
    dlq: DlqConfig = DlqConfig()
    """What happens to an event that can never be applied."""
    retry: RetryConfig = RetryConfig()
    """What is tried again, and how patiently, where a sink does not say otherwise."""
    control: ControlConfig = ControlConfig()
    """Where a pipeline keeps what it must remember."""
    log: LogConfig = LogConfig()
    """The change log between source and targets."""
    spark: SparkConfig = SparkConfig()
    """The Spark session that targets are written with."""
    slice: SliceConfig = SliceConfig()
    """How much of the change log is applied at a time."""
    limits: LimitsConfig = LimitsConfig()
    """Bounds that keep a bad source from taking the pipeline down."""
    max_buffered_messages: Annotated[int, Field(ge=1), _UNREAD] = 1000
    """How many messages are read ahead of a slow target, per partition."""
    schema_monitor_interval_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How often a run that reads Avro asks the schema registry for new versions of its topics' subjects."""
    lag_monitor_interval_seconds: Annotated[float, Field(gt=0)] = 15.0
    """How often a run measures its lag, logs it, and gives it to the health server."""
    stop_on_incompatible_schema: bool = False
    """For topics: halt at the first message whose schema lacks a column that the one before had, narrows a type or has
    another key, and at messages without a schema. Decided by each message's own schema, in JSON and Avro; of Avro also
    as soon as the schema registry has such a version."""
    health_enabled: bool = True
    """Whether `cdc run` serves probes, metrics and the live page over HTTP."""
    health_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address to listen on; `0.0.0.0` for every one. Whoever can reach it may read it: there is no login."""
    health_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """The port to listen on; 0 takes a free one, which `cdc health` finds. If unset, and 8080 is in use, it is a free
    one too."""
    health_max_lag_seconds: Annotated[float, Field(gt=0)] | None = None
    """The pipeline is not ready while events have waited for a target longer than this; no bound if unset."""
    health_max_slot_bytes: Annotated[int, Field(ge=1)] | None = 16 * 1024**3
    """The pipeline is not ready while the replication slot retains more than this; `null` for no bound."""

    def control_root(self, pipeline_id: str) -> Path:
        """Return the folder that holds what the pipeline must remember."""
        return self.control.root / pipeline_id

    def log_root(self, pipeline_id: str) -> Path:
        """Return the folder of the pipeline's change log."""
        return self.log.root / pipeline_id if self.log.root else self.control_root(pipeline_id) / "log"
