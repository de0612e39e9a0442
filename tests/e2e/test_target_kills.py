"""A sample of `make kills`, and of `make sleeps`."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.clients import FILES, in_files
from tests.e2e import landing
from tests.e2e.command import Command
from tests.e2e.kills import MODES, Feed, Kept, Looked, points_of, story
from tests.e2e.sleeps import slept


@pytest.mark.timeout(900)
def test_a_target_that_is_killed_twice_at_a_step_holds_what_the_source_holds(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    kind, mode = chance.choice([*FILES, "bronze"]), chance.choice(MODES)
    points = chance.sample(points_of(kind), 1)
    about = f"seed {seed}: {kind} {mode} {points}"
    print(about)
    with ExitStack() as stack:
        feed: Command
        kept: Looked
        if kind == "bronze":
            feed, kept = stack.enter_context(landing.landing(tmp_path / "feed"))
        else:
            store = in_files(kind, tmp_path / "store")
            files = Feed(tmp_path / "feed", [store.sink("copy", mode=mode)])
            feed, kept = files, Kept(files, store, mode)
        for what, wrong in story(feed, kept, points, chance):
            assert not wrong, f"{about}, {what}: {wrong}"


@pytest.mark.timeout(900)
def test_of_two_processes_one_commits_each_range_though_it_slept(tmp_path: Path, spark: SparkSession) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    every = [(kind, mode) for kind in FILES for mode in MODES]
    sinks = {of: in_files(of[0], tmp_path / "-".join(of)) for of in random.Random(seed).sample(every, 2)}
    for what, wrong in slept(tmp_path, sinks, spark):
        assert not wrong, f"seed {seed}, {what}: {wrong}"
