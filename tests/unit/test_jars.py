"""The jar cache and the search for Java, on real files and a real (if fake-versioned) executable."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tailrace.core.errors import Halt, NotReady
from tailrace.spark import archive, jvm, maven
from tailrace.spark.jars import Jar, checked, ensure, locked

BYTES = b"not really a jar"
JAR = Jar("delta", "org.example:thing:1.0", hashlib.sha256(BYTES).hexdigest())


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAILRACE_JARS", str(tmp_path))
    place = tmp_path / JAR.sha256[:16] / "thing-1.0.jar"
    place.parent.mkdir()
    place.write_bytes(BYTES)
    return place


def fake_java(folder: Path, says: str) -> None:
    (folder / "bin").mkdir()
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)


def test_every_locked_jar_has_an_exact_coordinate_and_a_digest() -> None:
    for jar in locked():
        assert re.fullmatch(r"[\w.]+:[\w.-]+:[\w.-]+", jar.coordinate)
        assert re.fullmatch(r"[0-9a-f]{64}", jar.sha256)


def test_a_jar_in_the_cache_is_used_without_a_word(cached: Path) -> None:
    said: list[str] = []
    assert ensure([JAR], said.append) == [cached]
    assert said == []


def test_a_jar_with_other_bytes_halts(cached: Path) -> None:
    cached.write_bytes(b"something else")
    with pytest.raises(Halt) as raised:
        ensure([JAR])
    assert raised.value.code == "jar-mismatch"
    assert str(cached.parent) in raised.value.hint


def test_a_checked_jar_is_returned(cached: Path) -> None:
    assert checked(cached, JAR) == cached


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TAILRACE_JARS", str(tmp_path / "file" / "jars"))
    with pytest.raises(NotReady, match="cannot be written: Not a directory") as raised:
        ensure([JAR], lambda _: None)
    assert raised.value.code == "jars-not-writable"


def test_no_java_at_all_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotReady, match=r"^no java on the path$") as raised:
        jvm.java()
    assert raised.value.code == "java-missing"


@pytest.mark.parametrize(("version", "major"), [("1.8.0_412", "8"), ("11.0.23", "11"), ("16", "16")])
def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: str) -> None:
    fake_java(tmp_path, f'openjdk version "{version}"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NotReady, match=f"is version {major}, needed is 17 or newer") as raised:
        jvm.java()
    assert raised.value.code == "java-too-old"


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_java_home_wins_and_a_new_java_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    fake_java(tmp_path, f'openjdk version "{version}" 2025-01-01')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jvm.java().path == str(tmp_path / "bin" / "java")


def test_a_class_archive_belongs_to_one_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = set()
    for version in ("17.0.15", "21.0.1"):
        (tmp_path / version).mkdir()
        fake_java(tmp_path / version, f'openjdk version "{version}"')
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / version))
        paths.add(archive.path([]))
    assert len(paths) == 2


def test_options_from_the_environment_do_not_change_which_class_archive_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = set()
    real = Path(jvm.java().path).resolve()
    for number, options in enumerate(["", "-XX:TieredStopAtLevel=1"]):
        (tmp_path / f"{number}" / "bin").mkdir(parents=True)
        (tmp_path / f"{number}" / "bin" / "java").symlink_to(real)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / f"{number}"))
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", options)
        paths.add(archive.path([]))
    assert len(paths) == 1


@pytest.mark.parametrize(
    ("mirror_of", "used"),
    [("central", True), ("*", True), ("external:*,!other", True), ("*,!central", False), ("other", False)],
)
def test_a_mirror_of_central_in_the_maven_settings_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror_of: str, used: bool
) -> None:
    settings = tmp_path / ".m2" / "settings.xml"
    settings.parent.mkdir()
    settings.write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors><mirror>'
        f"<mirrorOf>{mirror_of}</mirrorOf><url>https://mirror.example/maven</url></mirror></mirrors></settings>"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(maven.REPOSITORY, raising=False)
    assert maven.mirror_env() == ({maven.REPOSITORY: "https://mirror.example/maven/"} if used else {})


def test_the_proxy_of_the_environment_becomes_java_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,.internal")
    assert maven.proxy_options() == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.internal",
    ]


def test_the_client_of_iceberg_for_s3_is_of_the_version_of_iceberg() -> None:
    ours = [jar.coordinate.rsplit(":", 1)[1] for jar in locked() if jar.format == "iceberg"]
    assert [jar.coordinate for jar in locked("tailrace.targets.iceberg")] == [
        f"org.apache.iceberg:iceberg-aws-bundle:{version}" for version in ours
    ]
