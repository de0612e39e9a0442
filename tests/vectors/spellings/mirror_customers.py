# ruff: noqa: N801
from typing import Annotated

import tailrace
from tailrace import CDC, pk
from tailrace.types import BigInt, String, Text, TimestampTZ


@tailrace.connection
class kafka_prod:
    kind = "kafka"
    bootstrap_servers = "${KAFKA_BOOTSTRAP}"
    schema_registry_url = "${SR_URL}"


@tailrace.connection
class warehouse:
    kind = "postgres"
    url = "${WAREHOUSE_DSN}"


@tailrace.table(schema="mirror")
class CustomerMirror:
    customer_id: Annotated[BigInt, pk()]
    email: String[256] | None  # type: ignore[valid-type]
    name: Text | None
    updated_at: TimestampTZ


@tailrace.streaming_pipeline(
    source="kafka_prod",
    source_query="dbserver1.public.customers",
    target=CustomerMirror,
    target_connection="warehouse",
    cdc=CDC(envelope="debezium"),
)
def mirror_customers() -> None:
    pass
