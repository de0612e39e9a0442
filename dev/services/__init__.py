"""Real servers for tests and for developers, from Maven and PyPI packages, without root and without Docker."""

from dev.services.group import Group, Service, on_demand, running
from dev.services.process import StartFailed

__all__ = ["Group", "Service", "StartFailed", "on_demand", "running"]
