"""The JSON that the server answers with. Its keys are public; no setting and no value of a row is among them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

from tailrace.control.health import Problem, RegistryState, TargetState, View
from tailrace.control.readiness import Failing
from tailrace.core import offsets

_SOURCE = ("connector", "tasks", "server", "lag_bytes", "lag_seconds", "slot_active", "slot_retained_bytes")
"""What a source may say of itself here: figures and states, and nothing that it might add later."""


def alive(view: View) -> dict[str, object]:
    """Return what `/healthz` answers."""
    return {"status": "alive", "pipeline_id": view.pipeline_id, "run_id": view.run_id}


def ready(view: View, wrong: list[Failing]) -> dict[str, object]:
    """Return what `/readyz` answers."""
    return {
        "pipeline_id": view.pipeline_id,
        "run_id": view.run_id,
        "status": "not ready" if wrong else "ready",
        "failing": [asdict(part) for part in wrong],
        "source": {"status": view.source_status, **_source(view), **_error(view.source_error)},
        "sinks": [
            {"sink_id": name, "status": target.status, **_error(target.error)} for name, target in view.targets.items()
        ],
        "consumer_lag": view.lag,
        **_registry(view.registry),
    }


def status(view: View, wrong: list[Failing], version: str) -> dict[str, object]:
    """Return what `/api/status` answers: everything that the page shows."""
    return {
        "pipeline_id": view.pipeline_id,
        "run_id": view.run_id,
        "version": version,
        "status": view.status,
        "ready": not wrong,
        "failing": [asdict(part) for part in wrong],
        "started_at": _time(view.started_at),
        "now": _time(view.now),
        "source": {
            "type": view.source_type,
            "status": view.source_status,
            "phase": view.phase,
            "position": view.position,
            "pages": view.pages,
            "rows": view.rows,
            "checkpoint_at": _time(view.checkpoint_at),
            **_source(view),
            **_error(view.source_error),
        },
        "log": {"head": None if view.head is None else offsets.to_json(view.head)},
        "lag": {
            "measured_at": _time(view.measured_at),
            **_error(view.unmeasured),
        },
        **_registry(view.registry),
        "targets": [_target(name, target) for name, target in view.targets.items()],
        "last_error": _problem(view.last_error),
    }


def _target(name: str, target: TargetState) -> dict[str, object]:
    return {
        "target": name,
        "type": target.kind,
        "status": target.status,
        "slices": target.slices,
        "upto": None if target.upto is None else offsets.to_json(target.upto),
        "lag_events": target.lag_events,
        "lag_seconds": None if target.lag_seconds is None else round(target.lag_seconds, 1),
        "dead_letters": target.dead_letters,
        "tables": [{"table": table, **asdict(state)} for table, state in sorted(target.tables.items())],
        **_error(target.error),
    }


def _registry(registry: RegistryState | None) -> dict[str, object]:
    if registry is None:
        return {}
    subjects = [{"subject": name, **asdict(state)} for name, state in sorted(registry.subjects.items())]
    told = {"status": "unreachable" if registry.error else "watched", "looked_at": _time(registry.looked_at)}
    return {"schema_registry": {**told, "subjects": subjects, **_error(registry.error)}}


def _source(view: View) -> dict[str, object]:
    return {name: view.source[name] for name in _SOURCE if name in view.source}


def _error(problem: Problem | None) -> dict[str, object]:
    return {} if problem is None else {"error": _problem(problem)}


def _problem(problem: Problem | None) -> dict[str, object] | None:
    if problem is None:
        return None
    return {"code": problem.code, "message": problem.message, "hint": problem.hint, "at": _time(problem.at)}


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
