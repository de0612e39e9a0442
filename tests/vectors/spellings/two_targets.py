from tailrace import CDC, Connection, KafkaConnection, Target, streaming_pipeline


@streaming_pipeline(
    name="two-targets",
    source=KafkaConnection("brokers"),
    source_query="maxwell",
    source_table="shop.orders",
    targets=[
        Target(Connection("reports", "duckdb", path="./reports.duckdb"), "orders", primary_key=["id"]),
        Target(
            Connection("lake", "delta", catalog="events"),
            sink_id="events",
            mode="append",
            delete_mode="hard",
            enabled=False,
        ),
    ],
    cdc=CDC("maxwell", out_of_order_tolerance_ms=5000, delete_mode="soft"),
)
def two_targets() -> None:
    pass
