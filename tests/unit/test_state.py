"""Stored state: whole or not at all, and no damage goes unnoticed."""

from __future__ import annotations

import json
import random
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.apply.target import Mark
from tailrace.control import state
from tailrace.control.checkpoints import Checkpoints
from tailrace.control.lock import only_one
from tailrace.control.progress import Progress
from tailrace.core import failpoint
from tailrace.core.checkpoint import Scope, Snapshotting, Tailing
from tailrace.core.errors import Halt, NotReady, Retryable

CONTENT: state.Document = {"at": "0/16B3748", "ü": ["\n", None, 1.5], "deep": {"b": 1, "a": True}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    stored = tmp_path / "folder" / "state.json"
    state.save(stored, CONTENT)
    return stored


@pytest.fixture
def armed() -> Iterator[None]:
    failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": "C10=raise"})
    yield
    failpoint._armed.clear()


def code_of(path: Path) -> str:
    with pytest.raises(Halt) as found:
        state.load(path)
    return found.value.code


def test_what_is_saved_is_loaded(path: Path) -> None:
    assert state.load(path) == CONTENT
    state.save(path, {})
    assert state.load(path) == {}


def test_a_file_that_was_never_written_is_nothing(tmp_path: Path) -> None:
    assert state.load(tmp_path / "none.json") is None


def test_a_torn_file_halts_at_every_length(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert code_of(path) == "corrupt-state"


def test_every_changed_byte_halts(path: Path) -> None:
    whole = path.read_bytes()
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for at, byte in enumerate(whole):
        flips = {byte ^ (1 << bit) for bit in range(8)} | {chance.choice(b' \n\t09azAZ"{}\x00\xff')} - {byte}
        for other in flips:
            path.write_bytes(whole[:at] + bytes([other]) + whole[at + 1 :])
            assert code_of(path) == "corrupt-state", f"seed {seed} at {at}"


@pytest.mark.parametrize("text", ["", "null", "[]", "7", "{}", '"x"', '{"version": 1}', "{" * 50])
def test_what_is_not_ours_halts(path: Path, text: str) -> None:
    path.write_text(text)
    assert code_of(path) == "corrupt-state"


def test_content_that_was_edited_halts(path: Path) -> None:
    path.write_text(path.read_text().replace("0/16B3748", "0/16B3749"))
    assert code_of(path) == "corrupt-state"


def test_state_of_a_newer_release_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "VERSION", 2)
    state.save(path, CONTENT)
    monkeypatch.undo()
    assert json.loads(path.read_text())["version"] == 2
    assert code_of(path) == "state-too-new"


def test_a_crash_before_the_rename_leaves_the_old_state(path: Path, armed: None) -> None:
    with pytest.raises(Retryable):
        state.save(path, {"new": True})
    assert state.load(path) == CONTENT
    state.save(path, {"newer": True})
    assert [file.name for file in path.parent.iterdir()] == ["state.json"]


def test_a_write_that_finds_no_room_may_be_tried_again(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(Retryable) as failed:
            state.save(path, {"long": "x" * 500})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failed.value.code == "state-write"
    assert state.load(path) == CONTENT


# -- checkpoints


def test_a_checkpoint_is_what_was_saved_last(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    checkpoints.save(Snapshotting("here", "1", "2"))
    checkpoints.save(Tailing("here", "3"))
    assert Checkpoints(tmp_path).load() == Tailing("here", "3")


def test_a_torn_checkpoint_halts_and_does_not_begin_anew(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Tailing("here", "3"))
    (tmp_path / "checkpoint.json").write_text('{"content"')
    with pytest.raises(Halt) as found:
        checkpoints.load()
    assert found.value.code == "corrupt-state"


def test_a_life_goes_on_until_it_is_ended(tmp_path: Path) -> None:
    life = Checkpoints(tmp_path).begin(("public.a",))
    assert Checkpoints(tmp_path).begin(("public.a", "public.b")) == life
    assert (life.epoch, life.tables) == (1, ("public.a",))


def test_the_next_life_has_a_higher_epoch_a_new_log_and_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first = checkpoints.begin(("public.a",))
    checkpoints.save(Tailing("here", "3"))
    checkpoints.end()
    checkpoints.end()
    assert (checkpoints.life(), checkpoints.load()) == (None, None)
    second = checkpoints.begin(("public.b",))
    assert (second.epoch, second.tables) == (2, ("public.b",))
    assert second.log != first.log


# -- progress


def test_progress_is_kept_per_target_and_per_log(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.save("lake", "log-1", 7, {"public.a": Mark("log-1", 7, "0001.2.0")})
    progress.save("../../x", "log-1", 9, {})
    assert [progress.load(target, "log-1") for target in ("lake", "../../x", "other")] == [7, 9, -1]
    assert progress.load("lake", "log-2") == -1
    assert all(file.parent == tmp_path for file in tmp_path.rglob("*.json"))


def test_the_marks_of_tables_that_a_slice_did_not_touch_stay(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.save("lake", "log-1", 7, {"public.a": Mark("log-1", 7, "p7")})
    progress.save("lake", "log-1", 9, {"public.b": Mark("log-1", 9, "p9")})
    assert progress.marks("lake", "log-1") == {
        "public.a": {"offset": 7, "position": "p7"},
        "public.b": {"offset": 9, "position": "p9"},
    }
    assert progress.marks("lake", "log-2") == {}


def test_torn_progress_is_as_good_as_none(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.save("lake", "log-1", 7, {})
    (tmp_path / "lake.json").write_text("{")
    assert progress.load("lake", "log-1") == -1
    progress.save("lake", "log-1", 8, {})
    assert progress.load("lake", "log-1") == 8


# -- the lock


def test_one_process_at_a_time_runs_a_pipeline(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(NotReady) as refused, only_one(tmp_path):
        pass
    assert refused.value.code == "already-running"
    with only_one(tmp_path):
        pass


def test_a_life_may_take_more_tables_in_behind_those_it_has(tmp_path: Path) -> None:
    life = Checkpoints(tmp_path).begin(("b",))
    grown = Checkpoints(tmp_path).extend(("a", "b"))
    assert (grown.epoch, grown.log, grown.tables) == (life.epoch, life.log, ("b", "a"))
    assert Checkpoints(tmp_path).life() == grown
    assert Checkpoints(tmp_path).extend(("a",)) == grown


def test_the_tables_of_the_last_life_are_known_to_the_next(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).known() == ()
    Checkpoints(tmp_path).begin(("a", "b"))
    assert Checkpoints(tmp_path).known() == ("a", "b")
    Checkpoints(tmp_path).end()
    assert Checkpoints(tmp_path).life() is None
    assert Checkpoints(tmp_path).known() == ("a", "b")


def test_the_next_life_keeps_the_order_in_which_tables_came(tmp_path: Path) -> None:
    Checkpoints(tmp_path).begin(("gone", "public.Users"))
    Checkpoints(tmp_path).end()
    assert Checkpoints(tmp_path).begin(("public.users", "public.Users")).tables == ("public.Users", "public.users")


def test_a_checkpoint_with_a_scope_is_stored_whole(tmp_path: Path) -> None:
    scope = Scope("abc", (("a/b.users", "x"), ("users", "")))
    for checkpoint in (Snapshotting("here", "7", '{"tablet":"x"}', scope), Tailing("here", "9", scope)):
        Checkpoints(tmp_path).save(checkpoint)
        assert Checkpoints(tmp_path).load() == checkpoint


def test_a_checkpoint_of_another_release_halts(tmp_path: Path) -> None:
    state.save(tmp_path / "checkpoint.json", {"phase": "tailing", "origin": "here", "at": "3", "more": "x"})
    with pytest.raises(Halt) as found:
        Checkpoints(tmp_path).load()
    assert found.value.code == "corrupt-state"
