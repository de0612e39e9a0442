"""Positions and checkpoints: text that sorts like the numbers in it, and promises that survive storage."""

from __future__ import annotations

import json
import random

import pytest

from tailrace.core.checkpoint import Checkpoint, Snapshotting, Tailing, from_json, to_json
from tailrace.core.position import LOWEST, Phase, position

CHECKPOINTS = [
    Snapshotting("7123:1", "0/16B3748", "42"),
    Tailing("7123:1", "0/16B3748"),
    Tailing("", ""),
    Tailing("ü\n\"'", "\u2028"),
]


def test_texts_compare_like_the_numbers_in_them() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    places = [0, 1, 15, 16, 2**31, 2**53 - 1, 2**53, 2**53 + 1, 2**63, 2**64 - 1]
    places += [chance.randrange(2 ** chance.randrange(1, 65)) for _ in range(300)]
    numbers = [(chance.choice([1, 2, 9, 10, 255, 65535]), chance.choice(list(Phase)), place) for place in places]
    assert sorted(numbers) == sorted(numbers, key=lambda number: position(*number)), f"seed {seed}"
    assert len({position(*number) for number in numbers}) == len(set(numbers)), f"seed {seed}"


def test_a_change_sorts_above_every_row_of_the_snapshot_whatever_its_place() -> None:
    assert position(1, Phase.CHANGE, 0) > position(1, Phase.SNAPSHOT, 2**64 - 1)


def test_a_new_epoch_sorts_above_everything_before_it() -> None:
    assert position(2, Phase.RESET, 0) > position(1, Phase.CHANGE, 2**64 - 1)


def test_every_position_is_above_the_lowest() -> None:
    assert position(0, Phase.RESET, 0) > LOWEST


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_checkpoint_survives_storage(checkpoint: Checkpoint) -> None:
    assert from_json(json.loads(json.dumps(to_json(checkpoint)))) == checkpoint


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        {"phase": "tailing"},
        {"phase": "tailing", "origin": "x", "at": 7},
        {"phase": "tailing", "origin": None, "at": "7"},
        {"phase": "snapshotting", "origin": "x", "at": "7"},
        {"phase": "done", "origin": "x", "at": "7"},
        {"origin": "x", "at": "7"},
    ],
)
def test_what_is_not_a_checkpoint_is_refused(garbage: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not a checkpoint"):
        from_json(garbage)
