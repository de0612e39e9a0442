"""What a process has worked, for figures that are to say the same on a machine that others use too."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyspark import SparkContext


def worked() -> float:
    """Return the seconds of CPU that this process and its Java have taken; of Java where the system tells."""
    gateway = SparkContext._gateway
    stat = Path(f"/proc/{gateway.proc.pid}/stat") if gateway is not None else Path()
    if not stat.is_file():
        return time.process_time()
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return time.process_time() + (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
