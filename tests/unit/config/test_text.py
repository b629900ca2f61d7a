"""Names in messages: what a misspelled one may have been meant as."""

from __future__ import annotations

import pytest

from isthmus.config.text import no_such, similar


@pytest.mark.parametrize(
    ("typed", "known", "wanted"),
    [
        ("lst", ["delist", "list", "set"], ["list"]),
        ("wset", ["east", "west"], ["west"]),
        ("--reasn", ["--yes", "--reason"], ["--reason"]),
        ("clea", ["clear", "clean"], ["clear", "clean"]),
        ("cleaar", ["clean", "clear"], ["clear", "clean"]),
        ("factor", ["partitions", "replication-factor"], ["replication-factor"]),
        ("que", ["queue"], ["queue"]),
        ("WEST", ["west"], ["west"]),
        ("ab", ["cd"], []),
        ("since", ["cert"], []),
        ("", ["a"], []),
    ],
)
def test_the_name_with_the_fewest_mistakes_is_first(typed: str, known: list[str], wanted: list[str]) -> None:
    """A letter too many, too few, another, or two swapped is one mistake. Names with more than two, or than the length
    of the typed one allows, are left out; equally near ones keep their order."""
    assert similar(typed, known, most=3) == wanted


def test_a_message_has_one_suggestion_or_everything_that_there_is() -> None:
    """With a near name the others would only be noise; without one they are all that helps."""
    assert no_such("queue", "to-wset", ["to-west", "to-north"]) == 'no such queue: "to-wset"; did you mean "to-west"?'
    assert no_such("queue", "x", ["to-west", "to-north"]) == 'no such queue: "x"; known here: to-west, to-north'
    assert no_such("queue", "x", []) == 'no such queue: "x"; known here: none'
