"""Errors say what was found and what to do, and their kind says what the runtime does."""

from __future__ import annotations

import pytest

from tailrace.core.errors import Halt, Misconfigured, NotReady, Reject, ResyncRequired, Retryable, TailraceError


def test_an_error_is_printed_with_its_code_and_its_hint() -> None:
    error = Halt("schema-refused", 'table "a" has no column "b" in the target', "Add it there.")
    assert error.render() == 'error[schema-refused]: table "a" has no column "b" in the target\n  hint: Add it there.'


def test_an_error_without_a_hint_is_one_line() -> None:
    assert Retryable("busy", "the server was busy").render() == "error[busy]: the server was busy"


def test_the_text_of_an_error_is_its_message_alone() -> None:
    assert str(Reject("bad-value", "a value is bad", "Mend it.")) == "a value is bad"


@pytest.mark.parametrize(("kind", "code"), [(Halt, 1), (Misconfigured, 2), (NotReady, 3), (Retryable, 1)])
def test_the_kind_decides_the_exit_code(kind: type[TailraceError], code: int) -> None:
    assert kind("x", "y").exit_code == code


def test_a_resync_is_a_halt_with_a_code_of_its_own() -> None:
    error = ResyncRequired("the slot is gone", "Take a new snapshot.")
    assert isinstance(error, Halt)
    assert (error.code, error.exit_code) == ("resync-required", 1)
