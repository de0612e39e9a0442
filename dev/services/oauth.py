"""Tokens for a broker that takes them: who signs them, and an endpoint that hands them out for a client's secret."""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE = "kafka"
ISSUER = "tailrace-tests"
_KEY_ID = "1"


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that signs tokens; `public` is the file in which a broker looks up whether one is genuine."""

    key: rsa.RSAPrivateKey
    public: Path

    def token(self, subject: str, scope: str = "", seconds: int = 3600) -> str:
        now = int(time.time())
        claims = {"sub": subject, "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + seconds}
        # A broker takes a token without a scope, and none with an empty one.
        claims |= {"scope": scope} if scope else {}
        head = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        signed = ".".join(_text(json.dumps(part).encode()) for part in (head, claims))
        return f"{signed}.{_text(self.key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def make(folder: Path) -> Signer:
    """Return the signer of a folder, with the key that it had if it had one."""
    folder.mkdir(parents=True, exist_ok=True)
    private, public = folder / "signer.key", (folder / "signers.json").absolute()
    if not private.exists():
        made = rsa.generate_private_key(65537, 2048)
        private.touch(0o600)
        private.write_bytes(
            made.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    key = serialization.load_pem_private_key(private.read_bytes(), None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise TypeError(f"{private} holds another kind of key")
    numbers = key.public_key().public_numbers()
    shown = {
        "kty": "RSA",
        "use": "sig",
        "alg": "RS256",
        "kid": _KEY_ID,
        "n": _number(numbers.n),
        "e": _number(numbers.e),
    }
    public.write_text(json.dumps({"keys": [shown]}))
    return Signer(key, public)


@dataclass
class TokenEndpoint:
    """Gives tokens to the one client whose secret it knows, while it is entered; remembers the scopes asked for."""

    signer: Signer
    client: str
    secret: str
    scopes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
                status, said = owner.answer(self.headers.get("Authorization", ""), asked)
                body = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def answer(self, login: str, form: str) -> tuple[int, dict[str, object]]:
        """Return status and body for a request."""
        asked = dict(urllib.parse.parse_qsl(form))
        if _decoded(login) != f"{self.client}:{self.secret}":
            return 401, {"error": "invalid_client"}
        if asked.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        self.scopes.append(asked.get("scope", ""))
        token = self.signer.token(self.client, asked.get("scope", ""))
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": 3600}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _decoded(login: str) -> str:
    try:
        return base64.b64decode(login.removeprefix("Basic "), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
