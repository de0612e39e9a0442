"""What is asked of a real broker, and what is sent to it, without Spark: identities, offsets, groups, dead letters, logins."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from dev.services.kafka import Kafka
from dev.services.oauth import TokenEndpoint
from tailrace.config.model import Secret
from tailrace.config.platform import KafkaConfig
from tailrace.control.dead_letters import DeadLetters
from tailrace.control.rejects import Rejected
from tailrace.core.errors import Halt, NotReady, Retryable
from tailrace.log import _broker
from tailrace.log._broker import Broker, Topic
from tailrace.log._settings import for_librdkafka
from tests.service.topics import patiently, read, write

_numbers = itertools.count(1)


@pytest.fixture
def settings(kafka: Kafka) -> dict[str, str]:
    return {"bootstrap.servers": kafka.bootstrap}


@pytest.fixture
def broker(settings: dict[str, str]) -> Broker:
    return Broker(settings, {})


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"broker{next(_numbers)}.public.orders"
    kafka.create_topic(name, 2)
    # What was created is known to the one who asks a little later.
    patiently(lambda: name in kafka.topics())
    return name


def test_a_topic_made_anew_has_another_id(kafka: Kafka, broker: Broker, topic: str, settings: dict[str, str]) -> None:
    before = broker.topics([topic, "nowhere"])
    assert list(before) == [topic]
    assert before == broker.topics([topic])
    assert broker.cluster() == broker.cluster() != ""
    admin = AdminClient({**settings, "log_level": 0})
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
    patiently(lambda: broker.topics([topic]) == {topic: Topic(before[topic].id, 4)})
    admin.delete_topics([topic])[topic].result(30)
    patiently(lambda: broker.topics([topic]) == {})
    kafka.create_topic(topic, 2)
    patiently(lambda: topic in broker.topics([topic]))
    assert broker.topics([topic])[topic].id != before[topic].id


def test_names_are_matched_as_a_whole(broker: Broker, topic: str) -> None:
    assert broker.names(topic.replace(".", r"\.")) == [topic]
    assert topic not in broker.names(topic[:-1])
    assert not [name for name in broker.names() if name.startswith("__")]


def test_offsets_messages_and_expiry(broker: Broker, topic: str, settings: dict[str, str]) -> None:
    producer = Producer({**settings, "log_level": 0})
    for number in range(5):
        producer.produce(topic, f"v{number}".encode(), b"k", 1)
    producer.produce(topic, None, b"k", 0)
    assert producer.flush(30) == 0
    places = [(topic, 0), (topic, 1)]
    assert broker.starts(places) == {(topic, 0): 0, (topic, 1): 0}
    assert broker.ends(places) == {(topic, 0): 1, (topic, 1): 5}
    assert broker.message(topic, 1, 3) == (b"k", b"v3")
    assert broker.message(topic, 0, 0) == (b"k", None)
    place = TopicPartition(topic, 1, 3)
    admin = AdminClient({**settings, "log_level": 0})
    admin.delete_records([place])[place].result(30)
    assert broker.starts(places) == {(topic, 0): 0, (topic, 1): 3}
    assert broker.starts([]) == {}


def test_a_group_is_shown_where_it_is_told(broker: Broker, topic: str, settings: dict[str, str]) -> None:
    write(settings, topic, [(b"k", b"v")] * 3)
    broker.commit("shown", {(topic, 0): 1, (topic, 1): 0})
    broker.commit("shown", {})
    member = Consumer({**settings, "group.id": "shown", "log_level": 0})
    found = member.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=30)
    member.close()
    assert [place.offset for place in found] == [1, 0]


def test_a_broker_that_is_down_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_broker, "_SECONDS", 2.0)
    with pytest.raises(Retryable) as silent:
        Broker({"bootstrap.servers": "127.0.0.1:9", "socket.timeout.ms": "1000"}, {}).names()
    assert silent.value.code == "kafka-unreachable"


def letters(folder: Path, settings: dict[str, str], **changed: object) -> DeadLetters:
    return DeadLetters(folder, settings, **{"suffix": "dlq", "enabled": True, "limit": 3, **changed})  # type: ignore[arg-type]


def rejected(topic: str, offset: int) -> Rejected:
    return Rejected(
        topic, 1, offset, b"key", b"\xff\x00", "malformed: not a message", (("theirs", b"1"), ("none", None))
    )


def test_a_dead_letter_is_sent_once_with_where_it_came_from(
    topic: str, settings: dict[str, str], tmp_path: Path
) -> None:
    kept = letters(tmp_path, settings)
    kept.put("lake", "log", [rejected(topic, 7)])
    letters(tmp_path, settings).put("lake", "log", [rejected(topic, 7), rejected(topic, 8)])
    assert (kept.count("lake"), kept.count("other")) == (2, 0)
    first, second = read(settings, f"{topic}.dlq", 2)
    assert (first.key(), first.value()) == (b"key", b"\xff\x00")
    headers = dict(first.headers() or [])
    assert headers.pop("dlq.timestamp")
    assert headers == {
        "theirs": b"1",
        "none": None,
        "dlq.source_topic": topic.encode(),
        "dlq.source_partition": b"1",
        "dlq.source_offset": b"7",
        "dlq.error_type": b"malformed",
        "dlq.error_message": b"malformed: not a message",
        "dlq.sink_id": b"lake",
        "dlq.log": b"log",
    }
    assert dict(second.headers() or [])["dlq.source_offset"] == b"8"


def test_dead_letters_are_found_again(topic: str, settings: dict[str, str], tmp_path: Path) -> None:
    kept = letters(tmp_path, settings)
    assert list(kept.letters("lake")) == []
    kept.put("lake", "log", [rejected(topic, 7)])
    kept.put("other", "log", [rejected(topic, 9)])
    (letter,) = kept.letters("lake")
    assert (letter["key"], letter["value"]) == ("key", "base64:/wA=")
    assert (letter["dlq.source_offset"], letter["dlq.error_type"]) == (7, "malformed")
    assert "theirs" not in letter


def test_dead_letters_from_elsewhere_are_on_the_list_by_what_their_headers_say(
    topic: str, settings: dict[str, str], tmp_path: Path
) -> None:
    letters(tmp_path / "lost", settings).put("lake", "old", [rejected(topic, 7)])
    place = [("dlq.source.topic", topic.encode()), ("dlq.source.partition", b"0"), ("dlq.source.offset", b"5")]
    producer = Producer({**settings, "log_level": 0})
    producer.produce(f"{topic}.dlq", b"theirs", headers=[*place, ("dlq.sink.id", b"lake"), ("theirs", b"1")])
    assert producer.flush(30) == 0
    kept = letters(tmp_path / "new", settings, topics=lambda: [topic])
    kept.put("lake", "log", [rejected(topic, 8)])
    assert [letter["dlq.source_offset"] for letter in kept.letters("lake")].count(5) == 1
    found = {one.name: (one.log, one.event.offset, one.event.headers) for one in kept.kept("lake")}
    theirs, own = (("theirs", b"1"),), (("theirs", b"1"), ("none", None))
    assert found == {
        f"old/{topic}/1/7": ("old", 7, own),
        f"/{topic}/0/5": ("", 5, theirs),
        f"log/{topic}/1/8": ("log", 8, own),
    }
    assert kept.count("lake") == 1
    kept.forget("lake", [f"/{topic}/0/5"])
    assert {one.name for one in kept.kept("lake")} == {f"old/{topic}/1/7", f"log/{topic}/1/8"}
    kept.forget("lake", None)
    assert list(kept.letters("lake")) == []
    assert list(letters(tmp_path / "third", settings, topics=lambda: ["no.such.topic"]).letters("lake")) == []


def test_dead_letters_that_name_no_place_are_listed_until_they_are_forgotten(
    topic: str, settings: dict[str, str], tmp_path: Path
) -> None:
    kept = letters(tmp_path, settings, headers=False)
    kept.put("lake", "log", [rejected(topic, 7), rejected(topic, 8)])
    place = [("dlq.source_topic", b"a/b"), ("dlq.source_partition", b"0"), ("dlq.source_offset", b"5")]
    producer = Producer({**settings, "log_level": 0})
    producer.produce(f"{topic}.dlq", b"theirs", headers=place)
    assert producer.flush(30) == 0
    names = [f"{topic}.dlq/0/{offset}" for offset in range(3)]
    assert [letter["at"] for letter in kept.letters("lake")] == names
    assert [(one.name, one.log) for one in kept.kept("lake")] == [(name, None) for name in names]
    kept.forget("lake", names[:1])
    assert [letter["at"] for letter in kept.letters("lake")] == names[1:]
    kept.forget("lake", None)
    assert list(kept.letters("lake")) == []
    assert kept.count("lake") == 0


def test_dead_letters_that_were_sent_in_a_transaction_are_found(
    topic: str, settings: dict[str, str], tmp_path: Path
) -> None:
    kept = letters(tmp_path, settings, topics=lambda: [topic])
    kept.put("lake", "log", [rejected(topic, 7)])
    producer = Producer({**settings, "log_level": 0, "transactional.id": topic})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(f"{topic}.dlq", b"theirs", partition=0)
        end(30)
    assert [letter["value"] for letter in kept.letters("lake")].count("theirs") == 1


def test_more_dead_letters_than_the_client_has_room_for_are_all_sent(
    topic: str, settings: dict[str, str], tmp_path: Path
) -> None:
    small = {**settings, "queue.buffering.max.messages": "10", "linger.ms": "100"}
    letters(tmp_path, small, limit=100).put("lake", "log", [rejected(topic, n) for n in range(60)])
    assert len(read(settings, f"{topic}.dlq", 60)) == 60


def test_a_flood_of_dead_letters_halts(topic: str, settings: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(Halt) as flood:
        letters(tmp_path, settings).put("lake", "log", [rejected(topic, n) for n in range(4)])
    assert flood.value.code == "too-many-rejects"


def test_without_dead_letters_the_first_halts(topic: str, settings: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(Halt) as refused:
        letters(tmp_path, settings, enabled=False).put("lake", "log", [rejected(topic, 1)])
    assert refused.value.code == "event-rejected"
    assert Broker(settings, {}).topics([f"{topic}.dlq"]) == {}


def test_a_large_dead_letter_goes_through(topic: str, settings: dict[str, str], tmp_path: Path) -> None:
    large = Rejected(topic, 0, 1, None, b"x" * 5_000_000, "too-large: 5000000 bytes")
    letters(tmp_path, settings).put("lake", "log", [large])
    (letter,) = read({**settings, "fetch.message.max.bytes": "10000000"}, f"{topic}.dlq", 1)
    assert len(letter.value() or b"") == 5_000_000


def test_dead_letters_that_are_not_taken_hold_the_target(tmp_path: Path) -> None:
    kept = letters(tmp_path, {"bootstrap.servers": "127.0.0.1:9", "socket.timeout.ms": "1000"})
    with pytest.raises(Retryable) as unsent:
        kept.put("lake", "log", [rejected("orders", 1)])
    assert unsent.value.code == "dead-letter-unsent"
    assert kept.count("lake") == 0


def logged_in(secured: Kafka, tokens: TokenEndpoint, way: str, password: str | None = None) -> KafkaConfig:
    known = secured.secured
    assert known is not None
    if way == "certificate":
        return KafkaConfig(
            bootstrap_servers=known.mutual,
            security_protocol="SSL",
            ssl_ca_location=known.files.ca,
            ssl_certificate_location=known.files.client_certificate,
            ssl_key_location=known.files.client_key,
        )
    asked = {"sasl_oauth_token_endpoint_url": tokens.url, "sasl_oauth_scope": "read"} if "oauth" in way else {}
    return KafkaConfig.model_validate(
        {
            "bootstrap_servers": known.sasl,
            "security_protocol": "SASL_SSL",
            "auth_mechanism": way,
            "sasl_username": known.username,
            "sasl_password": Secret(password or known.password),
            "ssl_ca_location": known.files.ca,
            **asked,
        }
    )


@pytest.mark.parametrize("way", ["sasl_plain", "sasl_scram_256", "sasl_scram_512", "sasl_oauthbearer", "certificate"])
def test_a_broker_that_wants_to_know_who_asks(way: str, secured: Kafka, tokens: TokenEndpoint) -> None:
    tokens.scopes.clear()  # The endpoint is the session's: other tests asked it too.
    assert Broker(for_librdkafka(logged_in(secured, tokens, way)), {}).cluster()
    assert set(tokens.scopes) == ({"read"} if way == "sasl_oauthbearer" else set())


@pytest.mark.parametrize("way", ["sasl_plain", "sasl_oauthbearer"])
def test_a_wrong_password_is_refused_and_not_shown(
    way: str, secured: Kafka, tokens: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_broker, "_SECONDS", 3.0)
    with pytest.raises(NotReady) as refused:
        Broker(for_librdkafka(logged_in(secured, tokens, way, "canary")), {}).cluster()
    assert refused.value.code == "kafka-refused"
    assert "canary" not in refused.value.render()


def test_a_token_endpoint_that_is_down_may_come_back(
    secured: Kafka, tokens: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_broker, "_SECONDS", 3.0)
    settings = for_librdkafka(logged_in(secured, tokens, "sasl_oauthbearer"))
    away = {**settings, "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:9/token"}
    with pytest.raises(Retryable) as silent:
        Broker(away, {}).cluster()
    assert (silent.value.code, "OAUTHBEARER token" in str(silent.value)) == ("kafka-unreachable", True)
