"""The program of the S3 service: moto, behind a lock.

moto looks whether an object exists and then writes it, in two steps and in a thread per request. Two conditional puts
at once could both succeed, which S3 promises cannot happen. Here one request is served at a time, so one is refused.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import create_backend_app  # type: ignore[attr-defined]
from werkzeug.serving import run_simple

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def one_at_a_time(application: Application) -> Application:
    lock = threading.Lock()

    def served(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with lock:
            answer = application(environ, start_response)
            try:
                return [b"".join(answer)]
            finally:
                if close := getattr(answer, "close", None):
                    close()

    return served


def main(port: int) -> None:
    application = one_at_a_time(create_backend_app("s3"))
    run_simple("127.0.0.1", port, application, threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
