"""Runs one server for somebody else, and stops it when that somebody is gone.

Started as a program of its own, in a session of its own, with a pipe as standard input that only the starting process
holds the other end of. The pipe ends when that process closes it, exits, or is killed: in each case the server is asked
to stop, after a while made to, and the whole process group goes with it. So there is one way to stop, used every day.
SIGTERM to the keeper is the same request from somebody who does not hold the pipe.
"""

import os
import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 30


def main(command: list[str]) -> None:
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=_stop, args=[server], daemon=True).start())
    threading.Thread(target=_stop_at_end_of_input, args=[server], daemon=True).start()
    status = server.wait()
    print(f"[keeper] the server ended with status {status}", flush=True)
    os.killpg(0, signal.SIGKILL)


def _stop_at_end_of_input(server: "subprocess.Popen[bytes]") -> None:
    # Not sys.stdin: a buffered reader that a thread still holds breaks the interpreter's own end.
    while os.read(0, 1024):
        pass
    _stop(server)


def _stop(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()
    try:
        server.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
