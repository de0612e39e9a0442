"""Classes of the JVM, by their whole names, and each of them asked for once.

Spelt out as `jvm.org.apache.spark.sql.delta.DeltaLog`, every part of a name is a question to the JVM, and it looks into
every jar for a class that is called so before it says no. PySpark asks so for every expression that is made: in small
batches it was a third of what the driver did.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaGateway, JavaMember, JavaPackage, JVMView
from py4j.protocol import DEFAULT_JVM_ID, DEFAULT_JVM_NAME
from pyspark.sql import SparkSession


def java_class(session: SparkSession, name: str) -> Any:
    """Return the class `name`, for its static members and to make one; whether there is one is seen when it is used."""
    gateway: Any = session.sparkContext._gateway
    return JavaClass(name, gateway._gateway_client)


def remember_names(gateway: JavaGateway) -> None:
    """Let `gateway` ask for each name in its JVM once: one that was found is not looked up again."""
    gateway.jvm = _View(gateway._gateway_client, DEFAULT_JVM_NAME, DEFAULT_JVM_ID)


class _View(JVMView):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


class _Class(JavaClass):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


def _remembered(within: JVMView | JavaPackage | JavaClass, name: str, found: Any) -> Any:
    if isinstance(found, JavaPackage):
        found = _Package(found._fqn, found._gateway_client, found._jvm_id)
    elif isinstance(found, JavaClass):
        found = _Class(found._fqn, found._gateway_client)
    elif not isinstance(found, JavaMember):
        # The value of a field may be another one the next time.
        return found
    # What an object has is not asked of `__getattr__`.
    vars(within)[name] = found
    return found
