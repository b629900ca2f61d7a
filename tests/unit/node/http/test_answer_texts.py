"""Sentences that the command line recognises are those that nodes send."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from isthmus.config.text import as_it_answered
from isthmus.node.http.answer_texts import milliseconds, percent, silent_sentence, without_age
from isthmus.node.services.cluster_status import silent


def test_the_warning_about_a_silent_node_is_recognised() -> None:
    """The listing has exactly this sentence."""
    assert silent({"n2": None, "n1": SimpleNamespace()}) == [silent_sentence("n2")]  # type: ignore[dict-item]


def test_the_age_of_an_answer_is_removed() -> None:
    """Any age is removed; the rest of the reason stays."""
    assert without_age(as_it_answered("the source is suspended", 12_345)) == "the source is suspended"
    assert without_age("nothing was fetched yet") == "nothing was fetched yet"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (999.94, "999.9 ms"), (999.96, "1.0 s"), (1_000, "1.0 s"), (299_940, "299.9 s"), (299_960, "5.0 min"),
        (300_000, "5.0 min"), (7_199_990, "2.0 h"), (7_194_000, "119.9 min"), (0, "0.0 ms"), (None, "unknown"),
        (True, "unknown"),
    ],
)  # fmt: skip
def test_a_duration_is_rounded_before_its_unit_is_chosen(value: object, shown: str) -> None:
    """No text has a number that belongs to the next unit, such as "1000.0 ms"."""
    assert milliseconds(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0 %"), (0.001, "< 1 %"), (0.994, "99 %"), (0.9996, "> 99 %"), (1, "100 %"), (0.125, "12 %")],
)
def test_nearly_all_is_not_shown_as_all(share: float, shown: str) -> None:
    """Only a whole share is 100 %, and only none of it 0 %."""
    assert percent(share) == shown
