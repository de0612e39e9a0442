"""The Spark session and what it stands on: the JVM, its jars, its class archive."""

from tailrace.spark.start import losses, session

__all__ = ["losses", "session"]
