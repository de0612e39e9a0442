# ruff: noqa: N801
from typing import Annotated

import tailrace
from tailrace.types import BigInt, Numeric, Text


@tailrace.connection
class shop:
    kind = "postgres"
    url = "postgresql://cdc_user:${SHOP_PASSWORD}@db.example/shop"
    slot_name = "orders_slot"
    snapshot_mode = "initial"


@tailrace.connection
class lake:
    kind = "delta"
    path = "./lake"
    tombstone_days = 30


@tailrace.table(name="orders")
class Order:
    id: Annotated[BigInt, tailrace.pk()]
    total: Numeric[12, 2]  # type: ignore[valid-type]
    state: Text


@tailrace.streaming_pipeline(
    source=shop,
    source_query="public.orders",
    topic_prefix="shop",
    target=tailrace.Target(lake, Order, mode="scd2", schema_evolution="alter", track_history=["state"]),
)
def order_history() -> None:
    pass
