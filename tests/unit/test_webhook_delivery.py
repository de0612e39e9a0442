"""Messages reach a receiver at least once, those of a row in their order, each with an id of its own."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tailrace.apply.target import Applied, Mark, Refusal
from tailrace.control.deliveries import Deliveries
from tailrace.core import failpoint
from tailrace.core.errors import Halt, Retryable
from tailrace.core.offsets import Offsets
from tailrace.targets.webhook import Options, open_target
from tailrace.targets.webhook import target as webhook
from tailrace.targets.webhook.message import Message
from tailrace.targets.webhook.target import WebhookTarget
from tests.receiver import Got, Receiver, Reply, receiving

TABLE = "public.items"
LOG = "log-1"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(webhook, "_FIRST_WAIT", 0.001)
    with receiving() as up:
        yield up


@pytest.fixture
def opened(receiver: Receiver, tmp_path: Path) -> Any:
    """Return a function that opens the target; opening it again is a restart."""

    def open_it(**settings: Any) -> WebhookTarget:
        stop = settings.pop("stop", threading.Event())
        named = {"pipeline_id": "shop", "name": "hook"} | {
            k: settings.pop(k) for k in ("pipeline_id", "name") if k in settings
        }
        options = Options(url=f"{receiver.address}/in", allow_http=True, allow_private=True, **settings)
        return open_target(
            named["name"],
            options,
            pipeline_id=named["pipeline_id"],
            mode="append",
            notes=Deliveries(tmp_path, named["name"]),
            stop=stop,
        )

    return open_it


def changes(offsets: Sequence[int], keys: int = 5, partition: int = 0) -> list[Message]:
    """Return a change for each of `offsets`; the key goes round."""
    return [
        Message(
            (f"{offset:08d}", "cdc.public.items", partition, offset, 1),
            offset % keys,
            False,
            b'{"key":{"id":%d},"metadata":{"partition":%d,"offset":%d}}' % (offset % keys, partition, offset),
        )
        for offset in offsets
    ]


def send(target: WebhookTarget, news: Sequence[Message], upto: int, refused: list[Refusal] | None = None) -> Applied:
    return target.deliver(
        TABLE, Mark(LOG, upto, f"{int(upto):08d}"), news, (refused if refused is not None else []).extend
    )


def taken(receiver: Receiver) -> list[int]:
    return [got.offset for got in receiver.got]


def test_every_change_is_sent_once_to_a_receiver_that_takes_them(receiver: Receiver, opened: Any) -> None:
    target = opened()
    assert send(target, changes(range(100)), 99) == Applied(inserted=100)
    assert sorted(taken(receiver)) == list(range(100))
    assert target.mark(TABLE) == opened().mark(TABLE) == Mark(LOG, 99, "00000099")
    assert send(opened(), changes(range(100)), 99) == Applied()
    assert len(receiver.got) == 100
    first = receiver.got[0]
    assert (first.method, first.path) == ("POST", "/in")
    assert first.headers["content-type"] == "application/json"
    assert first.headers["webhook-timestamp"].isdecimal()


def test_a_later_change_of_a_key_waits_for_the_earlier_one(receiver: Receiver, opened: Any) -> None:
    seed = random.randrange(1 << 32)
    dice, lock = random.Random(seed), threading.Lock()
    acknowledged: dict[int, list[int]] = defaultdict(list)
    seen: dict[int, list[int]] = defaultdict(list)

    def answer(got: Got) -> Reply:
        key = got.json["key"]["id"]
        with lock:
            # Whatever is asked for now is the first that was not acknowledged before.
            assert acknowledged[key] == sorted(set(acknowledged[key]))
            assert not acknowledged[key] or got.offset > acknowledged[key][-1]
            seen[key].append(got.offset)
            if seen[key].count(got.offset) < 4 and dice.random() < 0.2:  # It gives up after five attempts.
                return Reply(dice.choice([408, 425, 500, 502, 503]))
            acknowledged[key].append(got.offset)
            return Reply(dice.choice([200, 201, 204]))

    receiver.answer = answer
    assert send(opened(), changes(range(300), keys=20), 299).inserted == 300, f"seed {seed}"
    for key in range(20):
        assert acknowledged[key] == list(range(key, 300, 20)), f"seed {seed}"
        assert seen[key] == sorted(seen[key]), f"seed {seed}"


def test_different_keys_go_side_by_side_up_to_the_bound(receiver: Receiver, opened: Any) -> None:
    meeting = threading.Barrier(3)
    lock, now, most = threading.Lock(), [0], [0]

    def answer(_: Got) -> Reply:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        meeting.wait(20)
        with lock:
            now[0] -= 1
        return Reply()

    receiver.answer = answer
    assert send(opened(concurrency=3), changes(range(30), keys=30), 29).inserted == 30
    assert most == [3]


def test_a_change_of_the_whole_table_goes_alone(receiver: Receiver, opened: Any) -> None:
    lock, now, beside = threading.Lock(), set[int](), list[tuple[int, ...]]()

    def answer(got: Got) -> Reply:
        with lock:
            now.add(got.offset)
            if 10 in now:
                beside.append(tuple(now))
        threading.Event().wait(0.002)
        with lock:
            now.discard(got.offset)
        return Reply()

    receiver.answer = answer
    news = changes(range(20), keys=20)
    news[10] = Message(news[10].place, 0, True, news[10].body)
    send(opened(), news, 19)
    assert beside == [(10,)]
    assert set(taken(receiver)[:10]) == set(range(10))
    assert taken(receiver)[10] == 10


def test_an_id_is_the_same_on_every_attempt_and_after_a_restart(receiver: Receiver, opened: Any) -> None:
    tries: dict[int, int] = defaultdict(int)

    def answer(got: Got) -> Reply:
        tries[got.offset] += 1
        return Reply(503) if tries[got.offset] <= 2 and got.offset % 3 == 0 else Reply()

    receiver.answer = lambda got: Reply(503) if got.offset % 3 == 0 else Reply()
    news = changes(range(12))
    with pytest.raises(Retryable) as failed:
        send(opened(), news, 11)
    assert failed.value.code == "webhook-unavailable"
    # Attempts are counted anew: how many of the others there were when one gave up is a matter of chance.
    receiver.answer = answer
    send(opened(), news, 11)
    assert [tries[offset] for offset in range(0, 12, 3)] == [3] * 4
    ids: dict[int, set[str]] = defaultdict(set)
    for got in receiver.got:
        ids[got.offset].add(got.id)
    assert [len(found) for found in ids.values()] == [1] * 12
    assert len(set.union(*ids.values())) == 12
    before = {got.id for got in receiver.got}
    others = [
        lambda: send(opened(name="other"), news[:1], 0),
        lambda: send(opened(name="third", pipeline_id="other"), news[:1], 0),
        lambda: opened(name="fourth").deliver(TABLE, Mark("log-2", 0), news[:1], [].extend),
        lambda: send(opened(name="fifth"), changes([0], partition=1), 0),
    ]
    for other in others:
        other()
    assert len({got.id for got in receiver.got} - before) == len(others)


def test_a_restart_goes_on_after_what_was_acknowledged(receiver: Receiver, opened: Any) -> None:
    receiver.answer = lambda got: Reply(503) if got.offset >= 60 else Reply()
    with pytest.raises(Retryable):
        send(opened(concurrency=1), changes(range(100)), 99)
    assert opened().mark(TABLE) is None
    receiver.got.clear()
    receiver.answer = lambda _: Reply()
    # The slice is cut anew: it holds a change that came late, with a place among those that were sent.
    late = Message(("00000030", "cdc.public.items", 0, 100, 1), 1, False, changes([100])[0].body)
    news = sorted([*changes(range(100)), late], key=lambda message: message.place)
    send(opened(concurrency=1), news, 100)
    assert taken(receiver) == [100, *range(60, 100)]
    assert opened().mark(TABLE).offset == 100


def test_a_replay_is_sent_whatever_a_slice_had_settled_and_leaves_that_as_it_was(
    receiver: Receiver, opened: Any
) -> None:
    send(opened(), changes(range(5)), 4)
    receiver.answer = lambda got: Reply(410 if got.offset == 8 else 200)
    with pytest.raises(Halt):
        send(opened(concurrency=1), changes(range(5, 10)), 9)
    receiver.answer = lambda _: Reply(200)
    receiver.got.clear()
    again = Mark(LOG, 4, "00000004", replays=5)
    assert opened().deliver(TABLE, again, changes([2, 6]), [].extend, replay=True) == Applied(inserted=2)
    assert opened().deliver(TABLE, again, changes([2, 6]), [].extend, replay=True) == Applied()
    assert sorted(taken(receiver)) == [2, 6]
    receiver.got.clear()
    opened().deliver(TABLE, Mark(LOG, 9, "00000009", replays=5), changes(range(5, 10)), [].extend)
    assert sorted(taken(receiver)) == [8, 9]


def test_a_place_in_partitions_is_remembered_too(receiver: Receiver, opened: Any) -> None:
    upto = Offsets({"cdc.public.items:0": 4, "cdc.public.items:1": 2})
    news = [*changes(range(5)), *changes(range(3), partition=1)]
    news.sort(key=lambda message: message.place)
    receiver.answer = lambda got: Reply(503) if got.offset == 2 else Reply()
    with pytest.raises(Retryable):
        send(opened(concurrency=1), news, upto)
    receiver.got.clear()
    receiver.answer = lambda _: Reply()
    send(opened(concurrency=1), news, upto)
    assert sorted(taken(receiver)) == [2, 2, 3, 4]
    assert opened().mark(TABLE).offset == upto


@pytest.mark.parametrize("name", ["C19", "C23", "C24", "C25"])
def test_a_crash_anywhere_loses_nothing(
    receiver: Receiver, opened: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoint, "_armed", {})
    failpoint.arm({"TAILRACE_TEST_MODE": "1", "TAILRACE_FAILPOINTS": f"{name}=raise"})
    with pytest.raises(Retryable):
        send(opened(), changes(range(20)), 19)
    send(opened(), changes(range(20)), 19)
    assert set(taken(receiver)) == set(range(20))
    assert opened().mark(TABLE).offset == 19


def test_retry_after_holds_every_lane_back(receiver: Receiver, opened: Any) -> None:
    asked: list[float] = []

    def answer(got: Got) -> Reply:
        if not asked:
            asked.append(got.at)
            return Reply(429, {"Retry-After": "1"})
        return Reply()

    receiver.answer = answer
    send(opened(concurrency=1), changes(range(5)), 4)
    assert taken(receiver) == [0, 0, 1, 2, 3, 4]
    assert receiver.got[1].at - receiver.got[0].at >= 1.0


def test_a_long_wait_is_left_to_the_runtime(receiver: Receiver, opened: Any) -> None:
    receiver.answer = lambda _: Reply(503, {"Retry-After": "120"})
    with pytest.raises(Retryable) as failed:
        send(opened(concurrency=1), changes([0]), 0)
    assert failed.value.after == 120
    receiver.answer = lambda _: Reply(503, {"Retry-After": "Fri, 31 Dec 2999 23:59:59 GMT"})
    with pytest.raises(Retryable) as failed:
        send(opened(concurrency=1, name="other"), changes([0]), 0)
    assert failed.value.after == 86400


@pytest.mark.parametrize(
    ("status", "code"),
    [
        *((n, "webhook-denied") for n in (401, 403, 407)),
        (410, "webhook-gone"),
        (301, "webhook-redirect"),
        (302, "webhook-redirect"),
        (307, "webhook-redirect"),
    ],
)
def test_an_answer_that_a_person_must_see_halts(receiver: Receiver, opened: Any, status: int, code: str) -> None:
    receiver.answer = lambda got: (
        Reply(status, {"Location": f"{receiver.address}/elsewhere"}) if got.offset == 3 else Reply()
    )
    aside: list[Refusal] = []
    with pytest.raises(Halt) as halted:
        send(opened(concurrency=1), changes(range(6)), 5, aside)
    assert (halted.value.code, bool(halted.value.hint), aside) == (code, True, [])
    assert taken(receiver) == [0, 1, 2, 3]
    assert {got.path for got in receiver.got} == {"/in"}
    receiver.answer = lambda _: Reply()
    receiver.got.clear()
    assert send(opened(), changes(range(6)), 5).inserted == 3
    assert sorted(taken(receiver)) == [3, 4, 5]


def test_a_change_that_the_receiver_refuses_is_put_aside_and_the_rest_goes_on(receiver: Receiver, opened: Any) -> None:
    refuses = {3: 400, 8: 404, 9: 422}
    receiver.answer = lambda got: Reply(refuses.get(got.offset, 200))
    aside: list[Refusal] = []
    assert send(opened(), changes(range(12)), 11, aside) == Applied(inserted=9, rejected=3)
    said = {event.offset: (event.topic, event.partition, event.reason) for event in aside}
    reason = 'webhook-refused: the receiver "127.0.0.1" answered'
    assert said == {offset: ("cdc.public.items", 0, f"{reason} {status}") for offset, status in refuses.items()}
    assert sorted(taken(receiver)) == list(range(12))


def test_what_was_refused_before_a_restart_still_counts(receiver: Receiver, opened: Any) -> None:
    receiver.answer = lambda got: Reply({1: 400, 4: 503}.get(got.offset, 200))
    aside: list[Refusal] = []
    with pytest.raises(Retryable):
        send(opened(concurrency=1), changes(range(6)), 5, aside)
    assert [event.offset for event in aside] == [1]
    receiver.answer = lambda _: Reply()
    assert send(opened(), changes(range(6)), 5, aside) == Applied(inserted=2, rejected=1)


def test_a_refusal_that_cannot_be_put_aside_is_not_passed(receiver: Receiver, opened: Any) -> None:
    receiver.answer = lambda got: Reply(400 if got.offset == 2 else 200)

    def full(_: Sequence[Refusal]) -> None:
        raise Halt("too-many-rejects", "no more")

    with pytest.raises(Halt):
        opened().deliver(TABLE, Mark(LOG, 5), changes(range(6)), full)
    aside: list[Refusal] = []
    send(opened(), changes(range(6)), 5, aside)
    assert [event.offset for event in aside] == [2]


def test_a_refusal_that_cannot_be_put_aside_is_not_passed_by_a_later_note_either(
    receiver: Receiver, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "_SAVE_EVERY", 0.0)
    receiver.answer = lambda got: Reply(400 if got.offset == 2 else 200)
    tried: list[int] = []

    def full_once(refused: Sequence[Refusal]) -> None:
        tried.extend(event.offset for event in refused)
        if len(tried) == 1:
            raise Halt("disk-full", "no room")

    with pytest.raises(Halt):
        opened(concurrency=1).deliver(TABLE, Mark(LOG, 199), changes(range(200)), full_once)
    aside: list[Refusal] = []
    done = send(opened(), changes(range(200)), 199, aside)
    assert set(tried) | {event.offset for event in aside} == {2}
    assert len(tried) + len(aside) >= 2
    assert done.rejected == 1


def test_the_two_halves_of_a_changed_key_are_two_messages(receiver: Receiver, opened: Any) -> None:
    place = ("00000007", "cdc.public.items", 0, 7)
    body = changes([7])[0].body
    halves = [Message((*place, 0), 1, False, body), Message((*place, 1), 2, False, body)]
    receiver.answer = lambda _: Reply(200 if len(receiver.got) == 1 else 410)
    with pytest.raises(Halt):
        send(opened(concurrency=1), halves, 7)
    receiver.answer = lambda _: Reply()
    assert send(opened(), halves, 7) == Applied(inserted=1)
    assert len({got.id for got in receiver.got}) == 2


def test_a_stop_ends_the_slice_and_what_was_sent_is_remembered(receiver: Receiver, opened: Any) -> None:
    stop = threading.Event()

    def answer(got: Got) -> Reply:
        if got.offset == 20:
            stop.set()
        return Reply()

    receiver.answer = answer
    with pytest.raises(Retryable) as stopped:
        send(opened(stop=stop, concurrency=1), changes(range(5000)), 4999)
    assert stopped.value.code == "stopping"
    reached = len(receiver.got)
    assert 20 < reached < 5000
    send(opened(concurrency=1), changes(range(5000))[:reached], reached - 1)
    assert len(receiver.got) <= reached + 1


def test_a_receiver_that_is_away_is_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "_FIRST_WAIT", 0.001)
    with receiving() as gone:
        address = gone.address
    options = Options(url=address, allow_http=True, allow_private=True)
    target = open_target(
        "hook", options, pipeline_id="shop", mode="append", notes=Deliveries(tmp_path, "hook"), stop=threading.Event()
    )
    with pytest.raises(Retryable) as failed:
        send(target, changes(range(3)), 2)
    assert failed.value.code == "webhook-unavailable"
    assert target.mark(TABLE) is None
