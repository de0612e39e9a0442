"""The bugs that are planted into the apply engine still find their place in it."""

from __future__ import annotations

import pytest

from tests.spark.mutants import MUTANTS, SOURCE, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_of_a_planted_bug_is_there(mutant: Mutant) -> None:
    assert mutant.old in (SOURCE / mutant.file).read_text("utf-8")
