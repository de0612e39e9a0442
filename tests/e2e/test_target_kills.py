"""A sample of `make kills`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.clients import FILES, in_files
from tests.e2e.kills import MODES, POINTS, Feed, Kept, story


@pytest.mark.timeout(900)
def test_a_target_that_is_killed_twice_at_a_step_holds_what_the_source_holds(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    kind, mode, points = chance.choice(FILES), chance.choice(MODES), chance.sample(POINTS, 2)
    about = f"seed {seed}: {kind} {mode} {points}"
    print(about)
    store = in_files(kind, tmp_path / "store")
    feed = Feed(tmp_path / "feed", [store.sink("copy", mode=mode)])
    for what, wrong in story(feed, Kept(feed, store, mode), points, chance):
        assert not wrong, f"{about}, {what}: {wrong}"
