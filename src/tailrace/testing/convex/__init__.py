"""A Convex deployment in memory, served over HTTP: the streaming export as the real server gives it.

Use `Deployment` to write, `Emulator` to serve it, `Faults` to make the server misbehave.
"""

from tailrace.testing.convex.deployment import Deployment, Transaction
from tailrace.testing.convex.exports import Limits
from tailrace.testing.convex.faults import Fault, Faults, fault
from tailrace.testing.convex.server import Behaviour, Emulator
from tailrace.testing.convex.workload import Workload

__all__ = ["Behaviour", "Deployment", "Emulator", "Fault", "Faults", "Limits", "Transaction", "Workload", "fault"]
