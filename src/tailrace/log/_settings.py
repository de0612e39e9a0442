"""How brokers are spoken to, in the words of the two clients: librdkafka's and Java's."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from tailrace.config.platform import KafkaConfig
from tailrace.core.errors import Misconfigured, NotReady

_MECHANISMS = {"sasl_plain": "PLAIN", "sasl_scram_256": "SCRAM-SHA-256", "sasl_scram_512": "SCRAM-SHA-512"}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_BEARER = "org.apache.kafka.common.security.oauthbearer"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def for_librdkafka(kafka: KafkaConfig) -> dict[str, str]:
    """Return the settings of a client of `confluent_kafka`."""
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": kafka.security_protocol,
        "ssl.ca.location": _path(kafka.ssl_ca_location),
        "ssl.certificate.location": _path(kafka.ssl_certificate_location),
        "ssl.key.location": _path(kafka.ssl_key_location),
    }
    if kafka.auth_mechanism == "sasl_oauthbearer":
        client, secret = _credentials(kafka)
        settings |= {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": client,
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.token.endpoint.url": _endpoint(kafka),
            "sasl.oauthbearer.scope": kafka.sasl_oauth_scope or "",
        }
    elif kafka.auth_mechanism != "none":
        username, password = _credentials(kafka)
        settings |= {
            "sasl.mechanism": _MECHANISMS[kafka.auth_mechanism],
            "sasl.username": username,
            "sasl.password": password,
        }
    return {name: value for name, value in settings.items() if value}


def for_spark(kafka: KafkaConfig) -> dict[str, str]:
    """Return the options of Spark's reader, which show in no page and no plan."""
    return {f"kafka.{name}": value for name, value in for_java(kafka).items()}


def for_java(kafka: KafkaConfig) -> dict[str, str]:
    """Return the settings of a client of Kafka's own library; certificates are in them as text."""
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": kafka.security_protocol,
    }
    if kafka.ssl_ca_location:
        settings |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": _text(kafka.ssl_ca_location),
        }
    if kafka.ssl_certificate_location and kafka.ssl_key_location:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _text(kafka.ssl_certificate_location),
            "ssl.keystore.key": _text(kafka.ssl_key_location),
        }
    if kafka.auth_mechanism == "sasl_oauthbearer":
        client, secret = map(_quoted, _credentials(kafka))
        scope = f" scope={_quoted(kafka.sasl_oauth_scope)}" if kafka.sasl_oauth_scope else ""
        login = f"{_BEARER}.OAuthBearerLoginModule required clientId={client} clientSecret={secret}{scope};"
        settings |= {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": login,
            "sasl.login.callback.handler.class": f"{_BEARER}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": _endpoint(kafka),
        }
    elif kafka.auth_mechanism != "none":
        username, password = map(_quoted, _credentials(kafka))
        module = _PLAIN if kafka.auth_mechanism == "sasl_plain" else _SCRAM
        settings |= {
            "sasl.mechanism": _MECHANISMS[kafka.auth_mechanism],
            "sasl.jaas.config": f"{module} required username={username} password={password};",
        }
    return settings


def _credentials(kafka: KafkaConfig) -> tuple[str, str]:
    if not kafka.sasl_username or kafka.sasl_password is None:
        raise Misconfigured(
            "missing-setting",
            f'kafka.auth_mechanism "{kafka.auth_mechanism}" needs a user and a password',
            "Set kafka.sasl_username and kafka.sasl_password.",
        )
    return kafka.sasl_username, kafka.sasl_password.get_secret_value()


def _endpoint(kafka: KafkaConfig) -> str:
    """Return where tokens are asked for: the client's secret goes there, so never in clear over a network."""
    address = kafka.sasl_oauth_token_endpoint_url
    if not address:
        raise Misconfigured(
            "missing-setting",
            'kafka.auth_mechanism "sasl_oauthbearer" needs an address to ask for tokens',
            "Set kafka.sasl_oauth_token_endpoint_url.",
        )
    parts = urlsplit(address)
    if "@" in parts.netloc:
        raise Misconfigured(
            "wrong-value",
            "kafka.sasl_oauth_token_endpoint_url names a user",
            "Give the client's id and secret as kafka.sasl_username and kafka.sasl_password.",
        )
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return address
    raise Misconfigured(
        "wrong-value",
        "kafka.sasl_oauth_token_endpoint_url is no address of HTTPS",
        "Write it as https://host/path: the client's secret is sent there.",
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _path(path: Path | None) -> str:
    return str(path) if path else ""


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise NotReady(
            "certificate-unreadable",
            f'certificate file "{path}" cannot be read: {(error.strerror or "unknown reason").lower()}',
            "Check the path and who may read the file.",
        ) from error
