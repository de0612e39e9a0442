"""The parts of dev/services that start nothing."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from dev.services import http, packages, process, state
from dev.services.connect import json_converters
from dev.services.group import NAMES, Group, in_order
from dev.services.java import properties
from dev.services.kafka import Kafka


def test_a_service_brings_what_it_needs_and_starts_after_it() -> None:
    assert in_order(["connect"]) == ["kafka", "connect"]


def test_no_name_means_every_service() -> None:
    assert in_order([]) == list(NAMES)


def test_an_unknown_service_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown service redis; known are kafka,"):
        in_order(["kafka", "redis"])


def test_asking_for_a_service_starts_nothing(tmp_path: Path) -> None:
    assert Group(tmp_path).kafka.group is None


def test_every_package_is_locked_and_nothing_else_is() -> None:
    assert set(packages.read_lock()) == set(packages.PACKAGES)


def test_every_coordinate_has_a_file_of_its_version_in_the_lock() -> None:
    locked = packages.read_lock()
    for package in packages.PACKAGES.values():
        for coordinate in package.coordinates:
            _, artifact, version, *_rest = coordinate.split(":")
            assert any(file.startswith(f"{artifact}-{version}") for file in locked[package.name])


def test_the_name_of_a_package_depends_on_its_bytes_and_not_on_their_order() -> None:
    assert packages.digest({"a": "1", "b": "2"}) == packages.digest({"b": "2", "a": "1"})
    assert packages.digest({"a": "1"}) != packages.digest({"a": "2"})


@pytest.mark.parametrize("found", [{}, {"a.jar": "2"}, {"a.jar": "1", "b.jar": "1"}], ids=["missing", "other", "more"])
def test_files_other_than_the_locked_are_refused(found: dict[str, str]) -> None:
    with pytest.raises(packages.PackageError, match=r"not what packages\.lock says: [ab]\.jar"):
        packages.refuse_other("kafka", found, {"a.jar": "1"})


def test_a_project_for_maven_names_each_part_of_a_coordinate() -> None:
    package = packages.Package("x", ("g:a:1:tar.gz:plugin",), archive=True)
    parts = {element.tag.split("}")[1]: element.text for element in ET.fromstring(packages.pom(package)).iter()}
    assert (parts["version"], parts["type"], parts["classifier"]) == ("1", "tar.gz", "plugin")
    assert "exclusions" in parts


def test_a_properties_file_keeps_a_backslash() -> None:
    assert properties([("path", "C:\\new")]) == "path=C:\\\\new\n"


def test_ports_belong_to_the_folder(tmp_path: Path) -> None:
    chosen = process.ports(tmp_path, 3)
    assert len(set(chosen)) == 3
    assert process.ports(tmp_path, 3) == chosen


def test_a_broker_listens_securely_only_if_asked(tmp_path: Path) -> None:
    assert "sasl" not in Kafka(tmp_path / "plain").addresses
    asked = Kafka(tmp_path / "asked", secure=True).addresses
    assert Path(asked["ca"]).read_text().startswith("-----BEGIN CERTIFICATE-----")
    assert Path(asked["client_key"]).stat().st_mode & 0o077 == 0


def test_certificates_stay_when_a_broker_comes_back(tmp_path: Path) -> None:
    first = Kafka(tmp_path, secure=True).addresses
    ca = Path(first["ca"]).read_bytes()
    assert Kafka(tmp_path, secure=True).addresses == first
    assert Path(first["ca"]).read_bytes() == ca


def test_both_converters_are_told_about_schemas() -> None:
    settings = json_converters(schemas=False)
    assert settings["key.converter.schemas.enable"] == settings["value.converter.schemas.enable"] == "false"


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("\n".join(f"line {number}" for number in range(100)))
    assert process.tail(log, 2).splitlines()[1:] == ["  line 98", "  line 99"]
    assert "there is no log" in process.tail(tmp_path / "none.log")


def test_a_state_is_read_back_while_its_holder_lives_and_not_after(tmp_path: Path) -> None:
    written = state.State(1, {"kafka": state.Entry(2, {"bootstrap": "127.0.0.1:3"})})
    with state.holding(tmp_path):
        state.write(written, tmp_path)
        assert state.read(tmp_path) == written
        assert (tmp_path / "state.json").stat().st_mode & 0o077 == 0
    assert state.read(tmp_path) is None


def test_the_state_of_a_holder_that_was_killed_is_a_leftover(tmp_path: Path) -> None:
    with state.holding(tmp_path):
        state.write(state.State(1, {}), tmp_path)
        kept = (tmp_path / "state.json").read_text()
    (tmp_path / "state.json").write_text(kept)
    assert state.read(tmp_path) is None


def test_there_is_one_holder(tmp_path: Path) -> None:
    with state.holding(tmp_path), pytest.raises(state.AlreadyUp), state.holding(tmp_path):
        pass


def test_a_refusal_carries_its_status() -> None:
    assert http.Refused(404, "no").status == 404


VECTORS = sorted((Path(__file__).parents[1] / "vectors" / "kafka").glob("*.json"))
CAPTURED = [path for path in VECTORS if "statements" in json.loads(path.read_text("utf-8"))]


@pytest.mark.parametrize("path", CAPTURED, ids=lambda path: path.stem)
def test_every_captured_step_left_messages_in_offset_order(path: Path) -> None:
    content = json.loads(path.read_text("utf-8"))
    assert {message["step"] for message in content["messages"]} == set(content["statements"])
    offsets: dict[str, list[int]] = {}
    for message in content["messages"]:
        offsets.setdefault(message["topic"], []).append(message["offset"])
    assert all(found == list(range(len(found))) for found in offsets.values())


def test_every_captured_avro_message_names_a_schema_that_was_kept() -> None:
    content = json.loads((VECTORS[0].parent / "postgres-avro.json").read_text("utf-8"))
    written = [
        base64.b64decode(m[part]) for m in content["messages"] for part in ("key_base64", "value_base64") if m[part]
    ]
    assert {each[0] for each in written} == {0}
    assert {str(int.from_bytes(each[1:5], "big")) for each in written} == set(content["schemas"])
