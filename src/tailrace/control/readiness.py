"""Whether a pipeline does its work, and which part does not: what `/readyz` and `cdc health` answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tailrace.control.health import Problem, View


@dataclass(frozen=True, slots=True)
class Bounds:
    """What counts as too much; without a bound, nothing does."""

    lag_seconds: float | None = None
    slot_bytes: int | None = None


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
    if view.source_status == "failed" and view.source_error:
        yield _halted("source", view.source_error)
    connector, tasks = view.source.get("connector"), view.source.get("tasks")
    for number, part in enumerate([connector, *(tasks if isinstance(tasks, list) else [])]):
        if isinstance(part, Mapping) and part.get("state") == "FAILED":
            name = "connector" if number == 0 else f"connector task {number - 1}"
            yield Failing(name, "connector-failed", f"the {name} has failed", "Look at its log, then restart it.")
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
        if target.status == "failed" and target.error:
            yield _halted(f"target {name}", target.error)
        elif bounds.lag_seconds is not None and (target.lag_seconds or 0.0) > bounds.lag_seconds:
            yield Failing(
                f"lag of target {name}",
                "lag",
                f"events have waited for {target.lag_seconds:.0f} s, and health_max_lag_seconds is "
                f"{bounds.lag_seconds:g}",
                "See whether the target's slices go through, and how long they take.",
            )


def _halted(part: str, problem: Problem) -> Failing:
    return Failing(part, problem.code, problem.message, problem.hint)
