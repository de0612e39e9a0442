"""Pipelines written in Python: the third spelling of the one configuration.

What is declared becomes a document and goes where a file goes, so that it means the same.
"""

from tailrace.api.connection import (
    Connection,
    KafkaConnection,
    PostgresConnection,
    connection,
    register_connection,
)
from tailrace.api.pipeline import CDC, StreamingPipeline, Target, streaming_pipeline
from tailrace.api.table import pk, table

__all__ = [
    "CDC",
    "Connection",
    "KafkaConnection",
    "PostgresConnection",
    "StreamingPipeline",
    "Target",
    "connection",
    "pk",
    "register_connection",
    "streaming_pipeline",
    "table",
]
