"""Requests to the servers' own HTTP interfaces, with the standard library."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen


class Refused(Exception):
    """The server answered, with an error; `status` is HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


def call(method: str, url: str, body: object = None, timeout: float = 30) -> Any:
    """Send JSON, return JSON; `None` where the server has nothing to say."""
    text = send(method, url, None if body is None else json.dumps(body).encode(), timeout)
    return json.loads(text) if text else None


def send(method: str, url: str, data: bytes | None = None, timeout: float = 30) -> bytes:
    headers = {"Accept": "*/*"} | ({"Content-Type": "application/json"} if data is not None else {})
    try:
        with urlopen(Request(url, data, headers, method=method), timeout=timeout) as response:
            return bytes(response.read())
    except HTTPError as error:
        with error:
            raise Refused(error.code, error.read().decode(errors="replace")) from None
