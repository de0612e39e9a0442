"""The keys under `maintenance` of a lakehouse sink: when its tables are compacted, and what of their past is kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tailrace.config.model import Model


class Maintenance(Model):
    """Compaction and expiry, done by the target's own drain between two slices."""

    enabled: bool = False
    """Whether a run does it. `cdc lakehouse compact` and `expire` do it on request, by the other keys."""
    expire_snapshots_interval_seconds: Annotated[float, Field(gt=0)] = 3600.0
    """How often snapshots are expired."""
    expire_snapshots_older_than_seconds: Annotated[float, Field(ge=0)] = 86400.0
    """From which age on snapshots are expired. The one that holds the mark stays."""
    compaction_interval_seconds: Annotated[float, Field(gt=0)] = 7200.0
    """How often tables are compacted."""
    compaction_file_threshold: Annotated[int, Field(ge=2)] = 10
    """How many files must lie together before they are compacted."""
    compaction_max_rows_per_batch: Annotated[int, Field(ge=1)] = 500_000
    """About how many rows are rewritten before that is committed."""
