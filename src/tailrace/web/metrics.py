"""The metrics of a run in Prometheus' text format. Labels are names from the configuration, never values of rows.

A figure that is not known has no sample: zero would be a claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from tailrace.control.health import SLICE_SECONDS, Timing, View
from tailrace.control.readiness import Failing

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "tailrace_"
_EVENTS = {
    "read": "Events read from the change log.",
    "applied": "Events folded into the table.",
    "superseded": "Events at or below what the table already had.",
    "filtered": "Events that do not concern the table, such as tombstones of a topic.",
    "rejected": "Events that can never be applied, put aside.",
}

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float | int]
"""A suffix of the metric's name, labels and the value."""


def render(view: View, wrong: Sequence[Failing], version: str) -> str:
    """Return all metrics."""
    return "".join(_lines(view, wrong, version))


def _lines(view: View, wrong: Sequence[Failing], version: str) -> Iterator[str]:
    pipeline = (("pipeline", view.pipeline_id),)
    yield from _metric("build_info", "gauge", "The release that runs.", [("", (*pipeline, ("version", version)), 1)])
    yield from _metric("ready", "gauge", "Whether every part does its work.", [("", pipeline, int(not wrong))])
    for name, help_text in _EVENTS.items():
        yield from _metric(f"events_{name}_total", "counter", help_text, _by_table(view, name))
    yield from _metric(
        "schema_changes_total",
        "counter",
        "Columns added or widened in a table; new versions of a subject in the schema registry.",
        [*_by_table(view, "schema_changes"), *_versions(view)],
    )
    yield from _metric(
        "schema_subject_version", "gauge", "The latest version of a subject in the schema registry.", _latest(view)
    )
    yield from _metric("slice_seconds", "histogram", "How long slices took, and their stages.", _slices(view))
    yield from _metric("lag_events", "gauge", "Events not applied yet.", _by_target(view, "lag_events"))
    yield from _metric(
        "partition_lag_events", "gauge", "Events of one partition not applied when last measured.", _partitions(view)
    )
    yield from _metric(
        "lag_seconds", "gauge", "How long the oldest of them has waited.", _by_target(view, "lag_seconds")
    )
    yield from _metric("dlq_events", "gauge", "Events that lie aside.", _by_target(view, "dead_letters"))
    yield from _metric(
        "maintenance_total", "counter", "Tables that were compacted or expired, or could not be.", _maintenance(view)
    )
    age = [] if view.checkpoint_at is None else [("", pipeline, round(max(view.now - view.checkpoint_at, 0.0), 3))]
    yield from _metric("checkpoint_age_seconds", "gauge", "Since the source's checkpoint was saved.", age)
    retained = view.source.get("slot_retained_bytes")
    yield from _metric(
        "slot_retained_bytes",
        "gauge",
        "What the database keeps for the replication slot.",
        [("", pipeline, retained)] if isinstance(retained, int) else [],
    )


def _metric(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> Iterator[str]:
    lines = [f"{_PREFIX}{name}{suffix}{_labels(labels)} {value}\n" for suffix, labels, value in samples]
    if lines:
        yield f"# HELP {_PREFIX}{name} {help_text}\n# TYPE {_PREFIX}{name} {kind}\n"
        yield from lines


def _by_table(view: View, field: str) -> Iterator[Sample]:
    for name, target in view.targets.items():
        for table, state in sorted(target.tables.items()):
            yield "", (*_target(view, name), ("table", table)), getattr(state, field)


def _by_target(view: View, field: str) -> Iterator[Sample]:
    for name, target in view.targets.items():
        if (value := getattr(target, field)) is not None:
            yield "", _target(view, name), round(value, 3)


def _versions(view: View) -> Iterator[Sample]:
    for name, state in sorted(view.registry.subjects.items()) if view.registry else ():
        labels = (("pipeline", view.pipeline_id), ("subject", name))
        yield "", (*labels, ("compatible", "true")), state.compatible_changes
        yield "", (*labels, ("compatible", "false")), state.incompatible_changes


def _maintenance(view: View) -> Iterator[Sample]:
    for name, target in view.targets.items():
        for outcome, count in sorted(target.maintenance.items()):
            yield "", (*_target(view, name), ("outcome", outcome)), count


def _slices(view: View) -> Iterator[Sample]:
    for name, target in view.targets.items():
        for stage, timing in target.timings.items():
            yield from _histogram(timing, (*_target(view, name), ("stage", stage)))


def _histogram(timing: Timing, labels: Labels) -> Iterator[Sample]:
    for bound, count in zip(SLICE_SECONDS, accumulate(timing.buckets), strict=True):
        yield "_bucket", (*labels, ("le", f"{bound:g}")), count
    yield "_bucket", (*labels, ("le", "+Inf")), timing.count
    yield "_sum", labels, round(timing.seconds, 6)
    yield "_count", labels, timing.count


def _partitions(view: View) -> Iterator[Sample]:
    for place in view.lag:
        if "partition" in place and isinstance(lag := place["lag"], int):
            where = (("topic", str(place["topic"])), ("partition", str(place["partition"])))
            yield "", (*_target(view, str(place["sink_id"])), *where), lag


def _latest(view: View) -> Iterator[Sample]:
    for name, state in sorted(view.registry.subjects.items()) if view.registry else ():
        yield "", (("pipeline", view.pipeline_id), ("subject", name)), state.version


def _target(view: View, name: str) -> Labels:
    return (("pipeline", view.pipeline_id), ("target", name))


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
