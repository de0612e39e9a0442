"""A Kafka broker: one node, KRaft, on loopback; with TLS and passwords on two more listeners if asked for.

Ports and data belong to the folder: a broker that is stopped or killed comes back where it was, with what it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from dev.services import oauth, packages, process, tls
from dev.services.java import class_path, java, properties

LOG_SETTINGS = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"


@dataclass(frozen=True, slots=True)
class Secured:
    """The listeners that want to know who you are.

    `sasl` takes a password over TLS (PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; all users are known to all three), or
    a token that `signer` signed (OAUTHBEARER).
    `mutual` takes the client's certificate over TLS and no password.
    """

    sasl: str
    mutual: str
    username: str
    password: str
    files: tls.Files
    signer: oauth.Signer


class Kafka:
    """A broker on `folder`; `bootstrap` asks for nothing, `secured` is there if asked for."""

    name = "kafka"

    def __init__(self, folder: Path, *, secure: bool = False) -> None:
        self.folder = folder
        self._controller, plain, sasl, mutual = process.ports(folder, 4)
        self.bootstrap = f"127.0.0.1:{plain}"
        self.secured: Secured | None = None
        if secure:
            files = tls.make(folder / "tls")
            signer = oauth.make(folder / "oauth")
            places = f"127.0.0.1:{sasl}", f"127.0.0.1:{mutual}"
            self.secured = Secured(*places, "tailrace", "tailrace-secret", files, signer)
        self._process = process.Process(self.name, folder / "kafka.log")

    @property
    def addresses(self) -> dict[str, str]:
        secured = self.secured
        return {"bootstrap": self.bootstrap} | (
            {
                "sasl": secured.sasl, "mutual": secured.mutual, "username": secured.username,
                "password": secured.password, "ca": str(secured.files.ca),
                "client_certificate": str(secured.files.client_certificate),
                "client_key": str(secured.files.client_key),
            } if secured else {}
        )  # fmt: skip

    @property
    def group(self) -> int | None:
        return self._process.group

    def start(self) -> None:
        jars = packages.ensure("kafka")
        settings = self.folder / "server.properties"
        settings.touch(0o600)
        settings.write_text(properties(self._settings().items()))
        if not (self.folder / "data" / "meta.properties").exists():
            tool = ["kafka.tools.StorageTool", "format", "--cluster-id", "dGFpbHJhY2UtdGVzdHMtMQ", *self._users()]
            process.run(
                self.name, [*java(128, LOG_SETTINGS), *class_path(jars), *tool, "--config", str(settings)],
                self.folder / "format.log",
            )  # fmt: skip
        command = [*java(384, LOG_SETTINGS, *self._allowed()), *class_path(jars), "kafka.Kafka", str(settings)]
        self._process.start(command, self._answers)

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        """End the broker as a crash would."""
        self._process.kill()

    def create_topic(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Make a topic and wait until it is there; the broker makes none by itself."""
        # The client must be there when the answer comes: it cancels what is under way when it is collected.
        admin = self._admin()
        admin.create_topics([NewTopic(topic, partitions, 1, config=dict(settings or {}))])[topic].result(30)

    def topics(self) -> set[str]:
        return set(self._admin().list_topics(timeout=10).topics)

    def _admin(self) -> AdminClient:
        # Its log would only repeat, line by line, what an exception says when it is over.
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _answers(self) -> None:
        if not self._admin().list_topics(timeout=2).brokers:
            raise ConnectionError("the broker does not list itself yet")

    def _users(self) -> list[str]:
        if not self.secured:
            return []
        user = f"[name={self.secured.username},password={self.secured.password}]"
        return ["--add-scram", f"SCRAM-SHA-256={user}", "--add-scram", f"SCRAM-SHA-512={user}"]

    def _allowed(self) -> list[str]:
        """Return what lets the broker read the file that tells genuine tokens."""
        public = self.secured.signer.public if self.secured else None
        named = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
        return [f"{named}.urls={public.as_uri()}", f"{named}.files={public}"] if public else []

    def _settings(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self._controller}"
        listeners = {"PLAINTEXT": self.bootstrap}
        if self.secured:
            listeners |= {"SASL": self.secured.sasl, "MUTUAL": self.secured.mutual}
        addresses = ",".join(f"{name}://{address}" for name, address in listeners.items())
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,MUTUAL:SSL",
            "listeners": f"{addresses},CONTROLLER://{controller}",
            "advertised.listeners": addresses,
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "num.network.threads": "2",
            "num.io.threads": "2",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **(self._security(self.secured) if self.secured else {}),
        }

    def _security(self, secured: Secured) -> dict[str, str]:
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        plain = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required"
            f' user_{secured.username}="{secured.password}";'
        )
        bearer, classes = "listener.name.sasl.oauthbearer.sasl", "org.apache.kafka.common.security.oauthbearer"
        return {
            f"{bearer}.jaas.config": f"{classes}.OAuthBearerLoginModule required;",
            f"{bearer}.server.callback.handler.class": f"{classes}.OAuthBearerValidatorCallbackHandler",
            f"{bearer}.oauthbearer.jwks.endpoint.url": secured.signer.public.as_uri(),
            f"{bearer}.oauthbearer.expected.audience": oauth.AUDIENCE,
            f"{bearer}.oauthbearer.expected.issuer": oauth.ISSUER,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(secured.files.server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(secured.files.ca),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.sasl.plain.sasl.jaas.config": plain,
            "listener.name.sasl.scram-sha-256.sasl.jaas.config": scram,
            "listener.name.sasl.scram-sha-512.sasl.jaas.config": scram,
        }
