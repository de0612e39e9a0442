"""Kafka Connect through its REST interface: making, changing, looking at and removing one connector.

Every change of a connector has the workers join their group again, and they refuse requests meanwhile (409). Those,
and a worker that does not answer, are tried again as often as was allowed.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from tailrace.config.platform import ConnectorConfig
from tailrace.core.errors import Misconfigured, NotReady

_BUSY = (409, 500, 502, 503, 504)
_LONGEST = 400
_LOOK_SECONDS = 5.0
_ACTIONS = {
    "pause": ("PUT", "/pause"),
    "resume": ("PUT", "/resume"),
    "restart": ("POST", "/restart?includeTasks=true"),
}


_HIDING = re.compile(r"password|secret|user.info|jaas|token|credential|keystore\.key", re.IGNORECASE)
"""Names of settings whose values nobody is to see."""


class Connector:
    """One connector of a Connect cluster, called `name`; `secret`, and what settings hide, is told to nobody."""

    def __init__(self, config: ConnectorConfig, name: str, secret: str = "") -> None:
        if urlsplit(config.connect_url).scheme not in ("http", "https"):
            raise Misconfigured(
                "wrong-value", "connector.connect_url is no address of HTTP", "Write it as http://host:8083."
            )
        self.name = name
        self._config = config
        self._url = config.connect_url.rstrip("/")
        self._secrets = {secret} - {""}

    def settings(self) -> dict[str, str] | None:
        """Return how the connector is set; `None` if there is no such connector."""
        found = self._ask("GET", "/config")
        self._hide(found or {})
        return None if found is None else dict(found)

    def status(self) -> dict[str, Any]:
        """Return the state of the connector and of its tasks; empty if there is no such connector."""
        found: dict[str, Any] = self._ask("GET", "/status") or {}
        return _states(found) if found else {}

    def reach(self, seconds: float) -> None:
        """Raise what keeps Kafka Connect from being asked for its connectors; it must answer within `seconds`."""
        try:
            with urllib.request.urlopen(f"{self._url}/connectors", timeout=seconds) as answer:  # noqa: S310
                answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise self._unreachable(f"status {error.code}") from error
        except OSError as error:
            raise self._unreachable(str(getattr(error, "reason", error))) from error

    def seen(self) -> dict[str, Any]:
        """Return the states as a monitor sees them, within seconds: UNREACHABLE and MISSING are states too."""
        try:
            found = _states(self._call("GET", "/status", None, _LOOK_SECONDS))
        except urllib.error.HTTPError as error:
            with error:
                found = _without("MISSING" if error.code == 404 else "UNREACHABLE")
        except (OSError, ValueError):
            found = _without("UNREACHABLE")
        return found

    def put(self, settings: Mapping[str, str]) -> None:
        """Make the connector, or change it, and wait until it and its task run."""
        self._hide(settings)
        self._ask("PUT", "/config", dict(settings))
        self.await_running()

    def await_running(self) -> None:
        """Return once the connector and its task run; halt if one of them has failed."""

        def runs(found: dict[str, Any]) -> bool:
            states = [found.get("connector", {}).get("state"), *(task["state"] for task in found.get("tasks", []))]
            if "FAILED" in states:
                raise self._failed()
            return len(states) > 1 and set(states) == {"RUNNING"}

        self._until(runs, "does not run yet")

    def remove(self) -> bool:
        """Remove the connector and what it remembers; say whether there was one. Its task has let go on return."""
        if self.settings() is None:
            return False
        self._ask("PUT", "/stop")
        self._until(lambda found: found == {"connector": {"state": "STOPPED"}, "tasks": []}, "does not stop")
        # A connector of the same name would otherwise go on where this one ended, without a snapshot.
        self._ask("DELETE", "/offsets")
        self._ask("DELETE", "")
        return True

    def change(self, action: str) -> None:
        """Have it `pause`, `resume`, or `restart` with its tasks; return once Connect has heard it."""
        if self.settings() is None:
            raise NotReady("not-deployed", f'there is no connector "{self.name}"', "Run cdc deploy <file> first.")
        self._ask(*_ACTIONS[action])

    def _until(self, done: Callable[[dict[str, Any]], bool], otherwise: str) -> None:
        deadline = time.monotonic() + self._config.timeout_seconds
        while not done(found := self.status()):
            if time.monotonic() > deadline:
                state = found.get("connector", {}).get("state", "unknown")
                raise NotReady(
                    "connect-timeout",
                    f'the connector "{self.name}" {otherwise}; its state is {state}',
                    "Look at the log of Kafka Connect, or raise connector.timeout_seconds.",
                )
            time.sleep(0.2)

    def _failed(self) -> NotReady:
        found: dict[str, Any] = self._ask("GET", "/status") or {}
        traces = [part.get("trace", "") for part in (found.get("connector", {}), *found.get("tasks", []))]
        causes = [line for trace in traces for line in trace.splitlines() if "xception" in line or "rror" in line]
        return NotReady(
            "connector-failed",
            f'the connector "{self.name}" failed: {self._shown(causes[-1]) if causes else "no reason given"}',
            "Mend what it says, then run cdc deploy <file> again.",
        )

    def _ask(self, method: str, what: str, body: object = None) -> Any:
        """Return the answer, `None` for an empty one and for what there is not."""
        left = self._config.retry_max_attempts
        while True:
            left -= 1
            try:
                return self._call(method, what, body)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                    if error.code not in _BUSY or not left:
                        raise self._refused(error) from error
            except OSError as error:
                if not left:
                    raise self._unreachable(str(getattr(error, "reason", error))) from error
            time.sleep(self._config.retry_wait_seconds)

    def _call(self, method: str, what: str, body: object, seconds: float | None = None) -> Any:
        url = f"{self._url}/connectors/{quote(self.name, safe='')}{what}"
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310  checked above
        with urllib.request.urlopen(request, timeout=seconds or self._config.timeout_seconds) as answer:  # noqa: S310
            text = answer.read()
        return json.loads(text) if text.strip() else None

    def _unreachable(self, why: str) -> NotReady:
        return NotReady(
            "connect-unreachable",
            f"Kafka Connect at {_address(self._url)} could not be asked: {why}",
            "Check connector.connect_url, and that Kafka Connect is up.",
        )

    def _refused(self, error: urllib.error.HTTPError) -> NotReady:
        try:
            said = str(json.loads(error.read())["message"])
        except (OSError, ValueError, KeyError, TypeError):
            said = "no reason given"
        return NotReady(
            "connect-refused",
            f'Kafka Connect refused connector "{self.name}" with status {error.code}: {self._shown(said)}',
            "Mend what it says: the settings of the source, or connector.settings.",
        )

    def _hide(self, settings: Mapping[str, str]) -> None:
        """Show nothing from now on of what `settings` keep secret."""
        hidden = [text for name, text in settings.items() if text and _HIDING.search(name)]
        # What quotes the settings may quote them as they were sent.
        self._secrets |= {*hidden, *(json.dumps(text)[1:-1] for text in hidden)}

    def _shown(self, text: str) -> str:
        hidden = text
        for secret in self._secrets:
            hidden = hidden.replace(secret, "***")
        return " ".join(hidden.split())[:_LONGEST]


def _states(found: Mapping[str, Any]) -> dict[str, Any]:
    tasks = [{"state": str(task["state"])} for task in found.get("tasks", [])]
    return {"connector": {"state": str(found["connector"]["state"])}, "tasks": tasks}


def _without(state: str) -> dict[str, Any]:
    return {"connector": {"state": state}, "tasks": []}


def _address(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
