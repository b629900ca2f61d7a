"""Pages of dead letters as nodes send them to each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.node.services import dead_letter_query
from isthmus.node.services.dead_letter_query import (
    LETTER_PAGE,
    PAGE_MAX,
    DeadLetterResponder,
    LetterPage,
    ListLetters,
)
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import Key
from isthmus.sink.dead_letters import DeadLetter

LETTER = DeadLetter(7, "q", "http://e1", b"u" * 16, "east", Key(b"t", b"b", b"k"), "too-large", "", 3, b"abc")


class ManyLetters:
    """A sink with letters 1 to `count`, each of the given size."""

    def __init__(self, count: int, size: int = 0) -> None:
        self.count = count
        self.size = size

    async def dead_letter_page(self, after: int, limit: int) -> tuple[list[DeadLetter], tuple[int, int]]:
        """See Sink."""
        numbers = range(after + 1, min(self.count, after + limit) + 1)
        return [replace(LETTER, id=number, error="x" * self.size) for number in numbers], (self.count, 4)


async def pages(sink: Any, limit: int) -> list[LetterPage]:
    """All pages, each behind the last number of the one before."""
    found: list[LetterPage] = []
    after = 0
    while not found or found[-1].more:
        found.append(await DeadLetterResponder(sink).respond(ListLetters(limit, after)))
        after = found[-1].dead_letters[-1].id
    return found


@pytest.mark.parametrize("limit", [1, 3, 5, PAGE_MAX, 10 * PAGE_MAX])
async def test_every_letter_is_on_one_page(limit: int) -> None:
    """For any limit, a page has at most its limit, and the last one reports that there are no more."""
    found = await pages(ManyLetters(PAGE_MAX + 5 if limit > 5 else 10), limit)
    numbers = [letter.id for page in found for letter in page.dead_letters]
    assert numbers == list(range(1, found[0].kept + 1))
    assert max(len(page.dead_letters) for page in found) <= min(limit, PAGE_MAX)
    assert found[0].given_up == 4


async def test_large_letters_make_short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends after the letter that exceeds its size, so that a letter of any size is still sent."""
    monkeypatch.setattr(dead_letter_query, "PAGE_BYTES_MAX", 1_000)
    assert [len(page.dead_letters) for page in await pages(ManyLetters(5, size=400), 100)] == [2, 2, 1]
    assert [len(page.dead_letters) for page in await pages(ManyLetters(2, size=5_000), 100)] == [1, 1]


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"dead_letters": [{}], "more": false, "kept": 1, "given_up": 0}',
        b'{"dead_letters": [{"id": "1"}], "more": false, "kept": 1, "given_up": 0}',
        b'{"dead_letters": [], "more": 0, "kept": 1, "given_up": 0}',
    ],
)
def test_an_answer_of_another_form_is_refused(body: bytes) -> None:
    """Letters have numbers; the next page begins behind the last."""
    with pytest.raises(CodecError):
        LETTER_PAGE.answers.decode(body)
