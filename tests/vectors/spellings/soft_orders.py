from __future__ import annotations

from typing import Annotated, Any

from tailrace import (
    CDC,
    KafkaConnection,
    PostgresConnection,
    Target,
    pk,
    register_connection,
    streaming_pipeline,
    table,
)

register_connection(KafkaConnection("orders_kafka", bootstrap_servers="broker:9092"))


@table(name="orders")
class Order:
    id: Annotated[Any, pk()]
    total: Any
    gone_at: Any


@streaming_pipeline(
    source="orders_kafka",
    source_query="orders",
    target=Target(
        PostgresConnection(
            "copy",
            host="::1",
            database="d/w",
            username="me@home",
            password="${WAREHOUSE_PASSWORD}",
        ),
        Order,
        sink_id="copy",
        retry={"max_attempts": 9, "jitter": False},
    ),
    cdc=CDC(
        envelope="custom",
        op_field="action",
        before_field="old_state",
        after_field="new_state",
        key_field="new_state.id",
        ts_field="changed_at_ms",
        op_map={"INSERT": "c", "UPDATE": "u", "DELETE": "d"},
        delete_mode="soft",
        soft_delete_column="gone_at",
        schema_evolution="fail",
    ),
)
def soft_orders() -> None:
    pass
