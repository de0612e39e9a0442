"""What is done once a day is done on the next day again, and whenever it is not known."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from tailrace.control.daily import Daily


def test_it_is_done_once_a_day_for_each_name_by_whoever_comes_first(tmp_path: Path) -> None:
    days = {"now": datetime.date(2026, 1, 1)}
    done: list[tuple[str, str]] = []

    def come(name: str) -> None:
        Daily(tmp_path / "daily", lambda: days["now"]).do(name, lambda: done.append((name, str(days["now"]))))

    for name in ("lake", "lake", "shop"):
        come(name)
    days["now"] = datetime.date(2026, 1, 2)
    for name in ("lake", "lake"):
        come(name)
    assert done == [("lake", "2026-01-01"), ("shop", "2026-01-01"), ("lake", "2026-01-02")]


def test_what_failed_or_is_not_known_is_done_again(tmp_path: Path) -> None:
    done: list[int] = []
    daily = Daily(tmp_path / "daily")

    def fail() -> None:
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        daily.do("lake", fail)
    daily.do("lake", lambda: done.append(1))
    (note,) = (tmp_path / "daily").iterdir()
    note.write_text("{")
    daily.do("lake", lambda: done.append(2))
    # No note can be put where a folder is.
    note.unlink()
    note.mkdir()
    daily.do("lake", lambda: done.append(3))
    assert done == [1, 2, 3]
