"""Events of a Convex deployment in Delta tables of their own, for others to fold: Lakeflow's AUTO CDC."""

from tailrace.targets.bronze.columns import table_names
from tailrace.targets.bronze.target import BronzeTarget, Options, open_target

MODES = ("append",)
SOURCES = ("convex",)
NAMES_RUNS = True
"""Rows say which run brought them."""
PROMISE = "each change event once, rows and mark in one commit; the checkpoint after them"

__all__ = ["MODES", "NAMES_RUNS", "PROMISE", "SOURCES", "BronzeTarget", "Options", "open_target", "table_names"]
