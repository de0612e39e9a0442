"""What `cdc dlq` does to the dead letters of a pipeline: the events that its targets put aside.

Looking takes no lock. What changes the list takes the lock of the pipeline, so that no run adds to it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.config.pipeline import SinkConfig
from tailrace.control.checkpoints import Checkpoints, Life
from tailrace.control.lock import only_one
from tailrace.control.rejects import Aside, Kept, Letter, letter_id
from tailrace.core.errors import Misconfigured
from tailrace.log.slice import Slice
from tailrace.runtime.drains import Drains
from tailrace.runtime.inlet import Inlet
from tailrace.runtime.replay import Replay, StillBad
from tailrace.runtime.report import Reporter, Silent


@dataclass(frozen=True)
class Letters:
    """The dead letters of one pipeline."""

    _drains: Drains
    _checkpoints: Checkpoints
    _rejects: Aside
    _inlet: Inlet
    _folder: Path
    _spark: Callable[[], SparkSession]

    def every(self, targets: Sequence[str] | None = None) -> Iterator[Letter]:
        """Yield the events that were put aside, of `targets` or of all; each has an `id`."""
        for sink in self._drains.chosen(targets):
            for letter in self._rejects.letters(sink.sink_id):
                parts = (str(letter.get(f"dlq.source_{part}")) for part in ("topic", "partition", "offset"))
                yield {"id": f"{sink.sink_id}/{letter.get('at') or '/'.join(parts)}", **letter}

    def replay(
        self, ids: Sequence[str] = (), targets: Sequence[str] | None = None, report: Reporter | None = None
    ) -> list[dict[str, object]]:
        """Apply dead letters again: those with `ids`, or all; return what became of them by target and table."""
        rows: list[dict[str, object]] = []
        with only_one(self._folder):
            chosen = self._letters(ids, targets)
            life = self._checkpoints.life()
            for sink in self._drains.chosen(targets) if life else ():
                names = chosen[sink.sink_id]
                if life and (names or not ids):
                    counts = self._replay(sink, life, report or Silent()).run(names if ids else None)
                    rows += [{"target": sink.sink_id, **asdict(count)} for count in counts]
        return rows

    def _replay(self, sink: SinkConfig, life: Life, report: Reporter) -> Replay:
        bad = StillBad()
        log = self._inlet.open(life).read_by(sink.sink_id, report.warning)
        prefix, growing = self._inlet.prefix, self._inlet.growing
        work = self._drains.drain(sink, life, log, report, prefix=prefix, growing=growing, rejects=bad)

        def again(letters: Sequence[Kept]) -> Slice:
            return self._inlet.again(life, letters, self._spark())

        return Replay(work, bad, self._rejects, self._folder / "replays", again, self._spark)

    def purge(self, ids: Sequence[str] = (), targets: Sequence[str] | None = None) -> list[str]:
        """Take dead letters off the list unapplied: those with `ids`, or all; return their ids."""
        with only_one(self._folder):
            chosen = self._letters(ids, targets)
            for target, names in chosen.items():
                self._rejects.forget(target, names if ids else None)
            return [letter for names in chosen.values() for letter in names.values()]

    def _letters(self, ids: Sequence[str], targets: Sequence[str] | None) -> dict[str, dict[str, str]]:
        """Return by target the names and ids of dead letters: those with `ids`, or all."""
        life = self._checkpoints.life()
        found: dict[str, dict[str, str]] = {}
        for sink in self._drains.chosen(targets):
            kept = list(self._rejects.kept(sink.sink_id))
            present = {letter_id(sink.sink_id, one) for one in kept if life and one.log == life.log}
            # Offsets begin again with every life: an id that is named means the letter of the present one.
            found[sink.sink_id] = {
                one.name: name
                for one in kept
                if (name := letter_id(sink.sink_id, one)) not in present or (life and one.log == life.log) or not ids
            }
        known = {one for names in found.values() for one in names.values()}
        for one in ids:
            if one not in known:
                raise Misconfigured("unknown-letter", f'there is no dead letter "{one}"', "See cdc dlq list.")
        return {
            target: {name: one for name, one in names.items() if not ids or one in ids}
            for target, names in found.items()
        }
