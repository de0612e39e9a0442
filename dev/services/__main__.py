"""`python -m dev.services up|down|status|fetch|lock [names...]`: the servers, by hand."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dev.services import packages, process, state
from dev.services.group import NAMES, Service, in_order, running

STARTING_SECONDS = 600


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (process.StartFailed, packages.PackageError, state.AlreadyUp, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def up(options: argparse.Namespace) -> int:
    """Hold the services until a signal comes; tell `status` and `down` about them."""
    names = in_order(options.names)
    if options.detach:
        return _detach(names, options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    with (
        contextlib.suppress(KeyboardInterrupt),
        state.holding(options.state),
        running(*names, folder=options.folder, secure=options.secure) as group,
    ):
        _tell({name: group.named(name) for name in names}, options.state)
    return 0


def down(options: argparse.Namespace) -> int:
    """Stop the named services, or all and their holder; return when they are gone."""
    found = state.read(options.state)
    if found is None and not state.held(options.state):
        print("nothing is up", file=sys.stderr)
        return 0
    if found is None:
        raise ValueError("the services are still starting: wait, or press Ctrl-C where they were started")
    if not options.names:
        os.kill(found.holder, signal.SIGTERM)
        return _until(lambda: not state.held(options.state), "the services do not stop")
    names = [name for name in options.names if name in found.services]
    for name in names:
        if group := found.services[name].group:
            os.kill(group, signal.SIGTERM)
    return _until(lambda: _stopped(names, options.state), f"{', '.join(names)} do not stop")


def status(options: argparse.Namespace) -> int:
    """Print what is up and where; exit code 3 if something asked for is not."""
    found = state.read(options.state)
    wanted = options.names or (list(found.services) if found else [])
    if found:
        shown = {name: entry for name, entry in found.services.items() if name in wanted}
        _show(state.State(found.holder, shown), as_json=options.json)
    else:
        print("nothing is up", file=sys.stderr)
    alive = {name for name, entry in found.services.items() if entry.group} if found else set()
    return 0 if found and alive.issuperset(wanted) else 3


def fetch(_: argparse.Namespace) -> int:
    """Download what the services are made of, and start nothing."""
    for name in packages.PACKAGES:
        print(packages.ensure(name))
    return 0


def lock(_: argparse.Namespace) -> int:
    """Resolve the packages again and rewrite packages.lock."""
    packages.write_lock()
    return 0


def _detach(names: Sequence[str], options: argparse.Namespace) -> int:
    if state.held(options.state):
        raise state.AlreadyUp('services are up already: see "status", or stop them with "down"')
    options.state.mkdir(parents=True, exist_ok=True)
    (options.state / "state.json").unlink(missing_ok=True)
    log = options.state / "up.log"
    again = ["up", *names, "--state", str(options.state), *(["--secure"] if options.secure else [])]
    again += ["--folder", str(options.folder)] if options.folder else []
    with log.open("wb") as out:
        holder = subprocess.Popen(
            process.python("dev.services", *again), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True, env={**os.environ, **process.PYTHON_ENV},
        )  # fmt: skip
    deadline = time.monotonic() + STARTING_SECONDS
    while (found := state.read(options.state)) is None:
        if holder.poll() is not None or time.monotonic() > deadline:
            holder.terminate()
            raise process.StartFailed(f"the services did not come up\n{process.tail(log)}")
        time.sleep(0.2)
    _show(found, as_json=False)
    return 0


def _tell(services: Mapping[str, Service], folder: Path) -> None:
    """Keep the state file true for as long as anything runs."""
    told = None
    while any(service.group for service in services.values()):
        now = state.of(services)
        if now != told:
            state.write(now, folder)
            _show(now, as_json=False)
            told = now
        time.sleep(0.3)


def _show(found: state.State, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: {"up": bool(e.group), **e.addresses} for name, e in found.services.items()}, indent=1))
        return
    for name, entry in found.services.items():
        print(f"{name}: {'up' if entry.group else 'stopped'}")
        for key, value in entry.addresses.items():
            print(f"  {key:22} {value}")
    sys.stdout.flush()


def _stopped(names: Sequence[str], folder: Path) -> bool:
    found = state.read(folder)
    return found is None or not any(found.services[name].group for name in names)


def _until(done: Callable[[], bool], otherwise: str) -> int:
    deadline = time.monotonic() + 2 * process.STOP_WITHIN.total_seconds()
    while not done():
        if time.monotonic() > deadline:
            raise process.StartFailed(otherwise)
        time.sleep(0.1)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dev.services", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for command in (up, down, status, fetch, lock):
        added = commands.add_parser(command.__name__, help=(command.__doc__ or "").splitlines()[0])
        added.set_defaults(run=command)
        if command in (up, down, status):
            added.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; all if none is named")
            added.add_argument("--state", type=Path, default=state.FOLDER, help="where up leaves word for the others")
        if command is up:
            added.add_argument("--detach", action="store_true", help="return once they are up")
            added.add_argument("--secure", action="store_true", help="let Kafka listen with TLS and passwords as well")
            added.add_argument("--folder", type=Path, help="where their data is kept; a temporary one otherwise")
        if command is status:
            added.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
