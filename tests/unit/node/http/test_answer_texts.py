"""Sentences that the command line recognises are those that nodes send."""

from __future__ import annotations

from types import SimpleNamespace

from isthmus.node.http.answer_texts import silent_sentence, without_age
from isthmus.node.services.cluster_status import silent
from isthmus.sink import status


def test_the_warning_about_a_silent_node_is_recognised() -> None:
    """The listing has exactly this sentence."""
    assert silent({"n2": None, "n1": SimpleNamespace()}) == [silent_sentence("n2")]  # type: ignore[dict-item]


def test_the_age_of_an_answer_is_removed() -> None:
    """Any age is removed; the rest of the reason stays."""
    assert without_age(status.as_it_answered("the source is suspended", 12_345)) == "the source is suspended"
    assert without_age("nothing was fetched yet") == "nothing was fetched yet"
