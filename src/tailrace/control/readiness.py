"""Whether a pipeline does its work, and which part does not: what `/readyz` and `cdc health` answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tailrace.control.health import Problem, View
from tailrace.control.lag import SERVER

_WRONG = {
    "FAILED": ("connector-failed", "the {} has failed", "Look at its log, then restart it."),
    "MISSING": ("not-deployed", "Kafka Connect has no {} of this pipeline", "Run cdc deploy <file>."),
    "UNREACHABLE": ("connect-unreachable", "Kafka Connect does not answer for the {}", "See that it is up."),
}
"""States of a connector in which nothing is captured: code, message and hint."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What counts as too much; without a bound, nothing does."""

    lag_seconds: float | None = None
    slot_bytes: int | None = None
    retrying_seconds: float | None = 60.0
    """How long a part may try again before it is said not to do its work: what passes in seconds needs nobody."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A part that does not do its work."""

    part: str
    code: str
    message: str
    hint: str = ""


def failing(view: View, bounds: Bounds) -> list[Failing]:
    """Return the parts that keep the pipeline from being ready; none if it is."""
    return [*_run(view), *_source(view, bounds), *_targets(view, bounds)]


def _run(view: View) -> Iterator[Failing]:
    if view.status != "running":
        yield Failing("pipeline", view.status, f"the pipeline is {view.status}")


def _source(view: View, bounds: Bounds) -> Iterator[Failing]:
    if view.source_error and _down(view.source_status, view.source_retrying_since, view, bounds):
        yield _halted("source", view.source_error)
    connector, tasks = view.source.get("connector"), view.source.get("tasks")
    for number, part in enumerate([connector, *(tasks if isinstance(tasks, list) else [])]):
        if isinstance(part, Mapping) and part.get("state") in _WRONG:
            name = "connector" if number == 0 else f"connector task {number - 1}"
            code, said, hint = _WRONG[part["state"]]
            yield Failing(name, code, said.format(name), hint)
    if isinstance(server := view.source.get(SERVER), Mapping):
        yield Failing("source server", *(str(server.get(name, "")) for name in ("code", "message", "hint")))
    retained = view.source.get("slot_retained_bytes")
    if bounds.slot_bytes is not None and isinstance(retained, int) and retained > bounds.slot_bytes:
        yield Failing(
            "slot",
            "slot-retains-too-much",
            f"the replication slot retains {retained} bytes, and health_max_slot_bytes is {bounds.slot_bytes}",
            "The database keeps them until they are captured. See whether capture goes on, and watch the disk.",
        )


def _targets(view: View, bounds: Bounds) -> Iterator[Failing]:
    for name, target in view.targets.items():
        if target.error and _down(target.status, target.retrying_since, view, bounds):
            yield _halted(f"target {name}", target.error)
        elif bounds.lag_seconds is not None and (target.lag_seconds or 0.0) > bounds.lag_seconds:
            yield Failing(
                f"lag of target {name}",
                "lag",
                f"events have waited for {target.lag_seconds:.0f} s, and health_max_lag_seconds is "
                f"{bounds.lag_seconds:g}",
                "See whether the target's slices go through, and how long they take.",
            )


def _down(status: str, since: float | None, view: View, bounds: Bounds) -> bool:
    if since is None or bounds.retrying_seconds is None:
        return status == "failed"
    return status == "failed" or view.now - since > bounds.retrying_seconds


def _halted(part: str, problem: Problem) -> Failing:
    return Failing(part, problem.code, problem.message, problem.hint)
