"""Classes of the JVM, by their whole names.

Spelt out as `jvm.org.apache.spark.sql.delta.DeltaLog`, every part of a name is a question to the JVM, and it looks into
every jar for a class that is called so before it says no.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession


def java_class(session: SparkSession, name: str) -> Any:
    """Return the class `name`, for its static members and to make one; whether there is one is seen when it is used."""
    gateway: Any = session.sparkContext._gateway
    return JavaClass(name, gateway._gateway_client)
