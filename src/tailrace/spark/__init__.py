"""The Spark session and what it stands on: the JVM, its jars, its class archive."""

from tailrace.spark.start import session

__all__ = ["session"]
