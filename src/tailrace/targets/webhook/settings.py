"""The keys under `webhook` of a sink, and the target that they describe."""

from __future__ import annotations

import ipaddress
import re
import threading
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tailrace.config.model import Hidden, Model, Secret
from tailrace.core.errors import Misconfigured
from tailrace.targets.webhook.call import Receiver
from tailrace.targets.webhook.message import signing_key
from tailrace.targets.webhook.target import Notes, WebhookTarget

MODES = ("append",)
"""One message per change, and nothing else: there is no table to keep current."""
PROMISE = "each change event at least once, those of a row in their order, with an id that tells a repeat"
KEEPS_NOTES = True
"""The receiver cannot tell what it has, so this pipeline remembers it."""

_USUAL = {"user-agent": "tailrace", "content-type": "application/json"}
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = {"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade", "te", "trailer"}


class Options(Model):
    """The keys under `webhook` of a sink."""

    url: Hidden
    """Where the messages go; it may name a port, a path and a query, but no user."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """The HTTP method."""
    headers: dict[str, Hidden] = Field(default_factory=dict)
    """Headers to send along. Those that begin with `webhook-`, and those of the connection, are ours."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=600)
    """How long a request may take, from looking up the name to the end of the answer."""
    signing_secrets: tuple[Secret, ...] = Field(default=(), max_length=2)
    """What messages are signed with: `whsec_` and 24 to 64 bytes in base64. With two, every message has both
    signatures, so that the receiver can go over to the new one. Without any, messages are not signed."""
    concurrency: int = Field(default=8, ge=1, le=64)
    """How many requests there are at a time; those of one row still go one after the other."""
    allow_http: bool = False
    """The url may be http, which anybody on the way can read; to `localhost` it may be so in any case."""
    allow_private: bool = False
    """The receiver may be at an address that is not of the public internet: in your network, or on this machine."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: Hidden) -> Hidden:
        text = url.get_secret_value()
        try:
            parts = urlsplit(text)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            raise ValueError("is not an address of a web server") from None
        if not usable or not text.isascii() or not text.isprintable() or " " in text or parts.fragment:
            raise ValueError("is not an address of a web server")
        if "@" in parts.netloc:
            raise ValueError("names a user; write what the receiver asks for under headers")
        return url

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, Hidden]) -> dict[str, Hidden]:
        for name, value in headers.items():
            text = value.get_secret_value()
            if not _NAME.fullmatch(name) or not text.isascii() or not text.isprintable():
                raise ValueError("has a name or a value that no header can have")
            if name.lower().startswith("webhook-") or name.lower() in _OURS:
                raise ValueError(f"has the name {name.lower()}, which is ours")
        if len({name.lower() for name in headers}) < len(headers):
            raise ValueError("has one name twice")
        return headers

    @field_validator("signing_secrets")
    @classmethod
    def _are_secrets(cls, secrets: tuple[Secret, ...]) -> tuple[Secret, ...]:
        for secret in secrets:
            signing_key(secret.get_secret_value())
        return secrets

    @model_validator(mode="after")
    def _is_allowed(self) -> Self:
        parts = urlsplit(self.url.get_secret_value())
        if parts.scheme == "http" and not self.allow_http and not _is_here(parts.hostname or ""):
            raise ValueError("has an http url; write https, or set allow_http to true")
        return self


def _is_here(host: str) -> bool:
    """Say whether `host` names this very machine, so that nobody is on the way."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_target(
    name: str,
    options: Options,
    *,
    pipeline_id: str,
    mode: str,
    notes: Notes,
    stop: threading.Event,
    **_: object,
) -> WebhookTarget:
    """Return the target that `options` describe; nothing is opened yet."""
    if mode not in MODES:
        raise Misconfigured("not-available", f'target "{name}" is a webhook and has no mode "{mode}"', "Use append.")
    return WebhookTarget(
        name,
        Receiver(options.url.get_secret_value(), options.method, options.timeout_seconds, options.allow_private),
        pipeline_id=pipeline_id,
        notes=notes,
        headers={
            **{header: text for header, text in _USUAL.items() if header not in map(str.lower, options.headers)},
            **{header: value.get_secret_value() for header, value in options.headers.items()},
        },
        keys=tuple(signing_key(secret.get_secret_value()) for secret in options.signing_secrets),
        concurrency=options.concurrency,
        stop=stop,
    )
