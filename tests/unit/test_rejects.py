"""Dead letters: kept whole, once each, before anything goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.control import state
from tailrace.control.dead_letters import DeadLetters, _told, as_kept
from tailrace.control.rejects import Kept, Rejected, Rejects, letter_id
from tailrace.core.errors import Halt, NotReady


def rejected(offset: int, value: bytes | None = b'{"op":"c"}', topic: str = "cdc.public.items") -> Rejected:
    return Rejected(topic, 0, offset, b'{"id":1}', value, 'bad-value: column "a" is no int')


@pytest.fixture
def rejects(tmp_path: Path) -> Rejects:
    return Rejects(tmp_path, enabled=True, limit=3)


def letters(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("*.json"))]


def test_a_dead_letter_holds_the_event_and_the_reason(rejects: Rejects, tmp_path: Path) -> None:
    rejects.put("lake", "log1", [rejected(7)])
    (letter,) = letters(tmp_path)
    assert letter.pop("dlq.timestamp")
    assert letter == {
        "key": '{"id":1}',
        "value": '{"op":"c"}',
        "dlq.source_topic": "cdc.public.items",
        "dlq.source_partition": 0,
        "dlq.source_offset": 7,
        "dlq.error_type": "bad-value",
        "dlq.error_message": 'bad-value: column "a" is no int',
        "dlq.sink_id": "lake",
    }


def test_dead_letters_are_found_again(rejects: Rejects) -> None:
    rejects.put("lake", "log1", [rejected(8), rejected(7, None)])
    assert [(letter["dlq.source_offset"], letter["value"]) for letter in rejects.letters("lake")] == [
        (7, None),
        (8, '{"op":"c"}'),
    ]
    assert list(rejects.letters("other")) == []


def test_letters_come_back_as_the_events_they_were_and_are_forgotten_by_name(rejects: Rejects) -> None:
    values = [None, b"\xff\x00", b"base64:AAAA"]
    rejects.put("lake", "log1", [rejected(n, value) for n, value in enumerate(values)])
    kept = list(rejects.kept("lake"))
    assert [(letter.log, letter.event) for letter in kept] == [
        ("log1", rejected(n, value)) for n, value in enumerate(values)
    ]
    rejects.forget("lake", [kept[0].name, "log1-0000-0000000000000099.json"])
    assert [letter.event.offset for letter in rejects.kept("lake")] == [1, 2]
    rejects.forget("lake", None)
    rejects.forget("other", None)
    assert rejects.count("lake") == 0


def test_keeping_an_event_again_replaces_it(rejects: Rejects) -> None:
    rejects.put("lake", "log1", [rejected(7), rejected(8)])
    rejects.put("lake", "log1", [rejected(7)])
    assert rejects.count("lake") == 2


def test_targets_and_logs_do_not_share_letters(rejects: Rejects) -> None:
    rejects.put("lake", "log1", [rejected(7)])
    rejects.put("lake", "log2", [rejected(7)])
    rejects.put("../lake", "log1", [rejected(7)])
    assert [rejects.count(target) for target in ("lake", "../lake", "other")] == [2, 1, 0]


@pytest.mark.parametrize(("value", "text"), [(b"\xff\x00", "base64:/wA="), (None, None), ("é".encode(), "é")])
def test_a_value_is_kept_whatever_its_bytes(
    rejects: Rejects, tmp_path: Path, value: bytes | None, text: str | None
) -> None:
    rejects.put("lake", "log1", [rejected(7, value)])
    assert letters(tmp_path)[0]["value"] == text


def test_a_flood_halts_and_is_kept_all_the_same(rejects: Rejects) -> None:
    rejects.put("lake", "log1", [rejected(n) for n in range(3)])
    with pytest.raises(Halt) as found:
        rejects.put("lake", "log1", [rejected(3)])
    assert found.value.code == "too-many-rejects"
    assert rejects.count("lake") == 4


def test_more_than_the_limit_at_once_halt_whatever_was_purged(rejects: Rejects, tmp_path: Path) -> None:
    sent = DeadLetters(tmp_path, {}, suffix="dlq", enabled=True, limit=3)
    events = [rejected(n) for n in range(4)]
    noted = [f"log1/{event.topic}/{event.partition}/{event.offset}" for event in events]
    state.save(tmp_path / "lake.sent.json", {"sent": noted, "done": []})
    rejects.forget("lake", None)
    sent.forget("lake", noted)
    for aside in (rejects, sent):
        with pytest.raises(Halt) as found:
            aside.put("lake", "log1", events)
        assert found.value.code == "too-many-rejects"
        assert "purge" in (found.value.hint or "")
    sent.put("lake", "log1", events[:3])
    assert sent.count("lake") == 0


def test_without_dead_letters_the_first_bad_event_halts(tmp_path: Path) -> None:
    with pytest.raises(Halt) as found:
        Rejects(tmp_path, enabled=False, limit=3).put("lake", "log1", [rejected(7)])
    assert found.value.code == "event-rejected"
    assert letters(tmp_path) == []


def test_nothing_to_keep_makes_nothing(rejects: Rejects, tmp_path: Path) -> None:
    rejects.put("lake", "log1", [])
    assert list(tmp_path.iterdir()) == []


def test_what_a_crash_left_half_written_does_not_count(rejects: Rejects, tmp_path: Path) -> None:
    rejects.put("lake", "log1", [rejected(7)])
    (tmp_path / "lake" / ".log1-0000-0000000000000008.json.tmp").write_text("{")
    assert rejects.count("lake") == 1


def test_headers_of_a_letter_are_read_in_either_spelling() -> None:
    told = _told([("dlq.source.topic", b"t"), ("dlq.source_offset", b"7"), ("dlq.error.type", None), ("a.b", b"\xff")])
    assert told == {"dlq.source_topic": "t", "dlq.source_offset": "7", "dlq.error_type": "", "a.b": "\ufffd"}


def told(topic: str = "t", partition: str = "0", offset: str = "7", **more: str) -> list[tuple[str, bytes | None]]:
    place = {"source_topic": topic, "source_partition": partition, "source_offset": offset}
    return [(f"dlq.{name}", text.encode()) for name, text in {**place, **more}.items()]


@pytest.mark.parametrize(
    ("headers", "name", "log"),
    [
        (told(log="new"), "new/t/0/7", "new"),
        (told(), "noted/t/0/7", "noted"),
        (told(offset="8"), "/t/0/8", ""),
        (told(log="a/b"), "a/b/t/0/7", "a/b"),
    ],
)
def test_a_letter_is_named_by_where_it_says_it_came_from(
    headers: list[tuple[str, bytes | None]], name: str, log: str
) -> None:
    found = as_kept(("t.dlq", 1, 3), b"k", b"v", [*headers, ("own", None)], {"t/0/7": "noted"})
    offset = int(name.rpartition("/")[2])
    assert found == Kept(name, log, Rejected("t", 0, offset, b"k", b"v", "", (("own", None),)))


@pytest.mark.parametrize(
    "headers",
    [[], told(""), told("a/b"), told(partition="x"), told(offset="-1"), told(offset="9" * 5000), told()[:2]],
    ids=["none", "no topic", "no name of a topic", "no partition", "no offset", "no number", "half"],
)
def test_a_letter_that_does_not_say_where_it_came_from_is_named_by_where_it_lies(
    headers: list[tuple[str, bytes | None]],
) -> None:
    found = as_kept(("t.dlq", 1, 3), None, b"v", headers, {"t/0/7": "noted"})
    assert found == Kept("t.dlq/1/3", None, Rejected("t.dlq", 1, 3, None, b"v", ""))
    assert letter_id("lake", found) == "lake/t.dlq/1/3"


def test_a_broker_that_is_away_does_not_mean_that_there_are_no_letters(tmp_path: Path) -> None:
    def topics(code: str) -> Callable[[], tuple[str, ...]]:
        def ask() -> tuple[str, ...]:
            raise NotReady(code, "topics could not be asked")

        return ask

    def listed(code: str) -> list[Kept]:
        return list(DeadLetters(tmp_path, {}, suffix="dlq", enabled=True, limit=3, topics=topics(code)).kept("t"))

    assert listed("topic-missing") == []
    with pytest.raises(NotReady):
        listed("kafka-unreachable")
