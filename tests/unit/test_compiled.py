"""Classes that are compiled once and kept, in a real folder."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tailrace.core.errors import NotReady
from tailrace.spark import compiled

SEAL = "0123456789abcdef0123456789abcdef"


def compiler(calls: list[str]) -> Callable[[], Mapping[str, bytes]]:
    def compile_them() -> Mapping[str, bytes]:
        calls.append("compiled")
        return {"tailrace.Known": b"code"}

    return compile_them


def test_classes_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_JARS", str(tmp_path))
    calls: list[str] = []
    places = {compiled.jar("engine", SEAL, compiler(calls)) for _ in range(2)}
    assert places == {tmp_path / SEAL[:16] / "engine.jar"}
    assert calls == ["compiled"]
    assert zipfile.ZipFile(places.pop()).read("tailrace/Known.class") == b"code"


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").write_text("a file where the cache should be")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TAILRACE_JARS", str(tmp_path / "jars"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    place = compiled.jar("engine", SEAL, compiler([]))
    assert place.parent.parent == tmp_path / "temporary"
    assert zipfile.ZipFile(place).namelist() == ["tailrace/Known.class"]


def test_no_place_at_all_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").write_text("a file where the cache should be")
    monkeypatch.setenv("TAILRACE_JARS", str(tmp_path / "jars"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(NotReady) as raised:
        compiled.jar("engine", SEAL, compiler([]))
    assert raised.value.code == "jars-not-writable"
