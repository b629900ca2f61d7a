"""The dead letters of every node: listed in pages, pushed again, or dropped.

A letter lies on the node that fetched it, and its number is that node's. All requests travel under one RPC method.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from isthmus.node.nouns.dead_letter import DeadLetterRow, RetriedLetter
from isthmus.node.services.cluster_query import JsonBody, Query
from isthmus.node.services.sink_listing import letter_row
from isthmus.sink.service import Sink

METHOD: Final = "dead-letters"

PAGE_MAX: Final = 1_000
"""Most dead letters of one node in an answer: with usual names some 400 KB of JSON."""

PAGE_BYTES_MAX: Final = 1_000_000
"""A page ends after the letter with which its JSON exceeds this size: keys may have 64 KB, and errors quote them."""


class ListLetters(msgspec.Struct, frozen=True, tag_field="what", tag="list"):
    """The oldest letters with numbers above `after`."""

    limit: int
    after: int = 0


class RetryLetters(msgspec.Struct, frozen=True, tag_field="what", tag="retry"):
    """Push letters again; None: all."""

    ids: list[int] | None


class DropLetters(msgspec.Struct, frozen=True, tag_field="what", tag="drop"):
    """Drop letters; None: all."""

    ids: list[int] | None


LetterRequest = ListLetters | RetryLetters | DropLetters


class LetterPage(msgspec.Struct, frozen=True):
    """Letters of one node, the oldest first, and whether there are more; `kept` of them in total, and `given_up` that
    were too many since the file was begun."""

    dead_letters: list[DeadLetterRow]
    more: bool
    kept: int
    given_up: int


DEAD_LETTERS: Final[Query[LetterRequest, Any]] = Query(METHOD, JsonBody(METHOD, LetterRequest), JsonBody(METHOD, Any))
"""All requests of the method, as a node serves them; the queries below have the types of one request each."""
LETTER_PAGE: Final[Query[ListLetters, LetterPage]] = Query(
    METHOD, JsonBody(METHOD, ListLetters), JsonBody(METHOD, LetterPage)
)
RETRIED: Final[Query[RetryLetters, list[RetriedLetter]]] = Query(
    METHOD, JsonBody(METHOD, RetryLetters), JsonBody(METHOD, list[RetriedLetter])
)
DROPPED: Final[Query[DropLetters, int]] = Query(METHOD, JsonBody(METHOD, DropLetters), JsonBody(METHOD, int))


class DeadLetterResponder:
    """Answers DEAD_LETTERS from this node's sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    async def respond(self, request: LetterRequest) -> Any:
        """See Responder. Raises LocalFault."""
        match request:
            case ListLetters():
                return await self._page(request)
            case RetryLetters():
                retried = await self._sink.retry_dead_letters(request.ids)
                return [msgspec.convert(one, RetriedLetter) for one in retried]
            case DropLetters():
                return await self._sink.drop_dead_letters(request.ids)

    async def _page(self, request: ListLetters) -> LetterPage:
        limit = max(1, min(request.limit, PAGE_MAX))
        found, (kept, given_up) = await self._sink.dead_letter_page(max(0, request.after), limit + 1)
        page: list[DeadLetterRow] = []
        size = 0
        for row in map(letter_row, found[:limit]):
            page.append(row)
            size += len(msgspec.json.encode(row))
            if size > PAGE_BYTES_MAX:
                break
        return LetterPage(page, len(page) < len(found), kept, given_up)
