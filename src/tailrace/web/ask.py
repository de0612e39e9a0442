"""Asking the server of a running pipeline, found by the note it leaves beside the pipeline's state.

The note may be left over from a process that was killed. So an answer counts only if it names the pipeline
and the run of the note: another program may have the port by now.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.control import state
from tailrace.core.errors import TailraceError

_NOTE = "server.json"
_SECONDS = 5.0
_MOST_BYTES = 4 * 1024 * 1024


@contextmanager
def noted(folder: Path, run_id: str, address: tuple[str, int]) -> Iterator[None]:
    """Leave a note in `folder` of where the server listens, for as long as it does."""
    note = folder / _NOTE
    state.save(note, {"run_id": run_id, "host": address[0], "port": address[1]})
    try:
        yield
    finally:
        # Another run may have left its own by now, since the lock of this one is free.
        with contextlib.suppress(TailraceError, OSError):
            if (state.load(note) or {}).get("run_id") == run_id:
                note.unlink()


def running(root: Path) -> list[dict[str, object]]:
    """Return what `/readyz` says of every pipeline below `root` whose server answers."""
    answers = (_asked(note.parent.name, note) for note in sorted(root.glob(f"*/{_NOTE}")))
    return [answer for answer in answers if answer is not None]


def _asked(pipeline_id: str, note: Path) -> dict[str, object] | None:
    try:
        where = state.load(note) or {}
        host, port = str(where["host"]), int(str(where["port"]))
    except (TailraceError, KeyError, ValueError, OSError):
        return None
    connection = http.client.HTTPConnection(_reachable(host), port, timeout=_SECONDS)
    try:
        connection.request("GET", "/readyz")
        answer = json.loads(connection.getresponse().read(_MOST_BYTES))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    same = isinstance(answer, dict) and answer.get("run_id") == where.get("run_id")
    return answer if same and answer.get("pipeline_id") == pipeline_id else None


def _reachable(host: str) -> str:
    """Return an address to reach a server at that listens on `host`, which may stand for every address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - asked for, not listened on
