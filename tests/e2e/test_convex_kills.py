"""A sample of `make kills TARGETS=convex`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.e2e.convex_kills import Points, killed_at


@pytest.mark.timeout(900)
def test_what_is_killed_on_the_way_from_convex_to_the_publish_is_mended_by_the_next_run(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance, every = random.Random(seed), Points()
    points = Points(
        snapshot=(chance.choice(every.snapshot),),
        pump=(chance.choice(every.pump),),
        drain=(chance.choice(every.drain),),
        resync=(chance.choice(every.resync),),
        # One that is killed before the switch may leave nothing for those after it to be killed at.
        publish=(chance.choice(every.publish),),
    )
    print(f"seed {seed}: {points}")
    killed_at(tmp_path, points)
