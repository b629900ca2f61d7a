"""The journal: the one of files and the one in memory return the same acts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.observability.journal import Journal
from tests.support.journals import journal_in
from tests.support.memory_journal import MemoryJournal

AnyJournal = Journal | MemoryJournal


@pytest.fixture(params=["files", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], AnyJournal]:
    """Makes a log; the one of files is rotated every few lines."""
    return (lambda: journal_in(tmp_path, 1_000, 100)) if request.param == "files" else MemoryJournal


def line(at_ms: int) -> dict[str, Any]:
    """An audit line with the keys that queries read."""
    return {"at_ms": at_ms, "who": {"by": "ann"}, "what": {"act": "x", "request": [1, None, "ä\n"]}}


async def test_lines_come_back_as_they_were_with_their_ids(opened: Callable[[], AnyJournal]) -> None:
    """Ids begin at 1, in the order of the calls; the newest line comes first."""
    log = opened()
    for at_ms in range(30):
        await log.append(line(at_ms))
    page = await log.acts(None, 0, 100)
    assert page.lines == [{"id": number, **line(number - 1)} for number in range(30, 0, -1)]
    assert (page.more, page.unreadable) == (False, 0)
    await log.stop()


async def test_concurrent_lines_are_all_there(opened: Callable[[], AnyJournal]) -> None:
    """Every line is stored, whether its writer awaits the write (`append`) or not (`enqueue`)."""
    log = opened()
    await asyncio.gather(*(log.append(line(at_ms)) for at_ms in range(50)))
    await asyncio.gather(*(log.enqueue(line(at_ms)) for at_ms in range(50, 80)))
    page = await log.acts(None, 0, 100)
    assert [act["at_ms"] for act in page.lines] == list(range(79, -1, -1))
    await log.stop()


@pytest.mark.parametrize(("before", "since_ms", "limit"), [(None, 0, 5), (20, 0, 5), (20, 15, 9), (1, 0, 9), (4, 0, 3)])
async def test_pages_have_the_same_bounds(
    opened: Callable[[], AnyJournal], before: int | None, since_ms: int, limit: int
) -> None:
    """A page holds lines below the given id and not older than the given time, up to the limit; `more` is true if lines
    were left out."""
    log = opened()
    for at_ms in range(30):
        await log.append(line(at_ms))
    fit = [number for number in range(30, 0, -1) if number < (before or 31) and number - 1 >= since_ms]
    page = await log.acts(before, since_ms, limit)
    assert ([act["id"] for act in page.lines], page.more) == (fit[:limit], len(fit) > limit)
    await log.stop()


@pytest.mark.parametrize(("before", "limit", "ids", "read_to"), [
    (None, 5, [30, 25, 20, 15, 10], 6), (None, 2, [30, 25], 21), (21, 9, [20, 15, 10, 5], 1), (1, 5, [], None),
])  # fmt: skip
async def test_pages_of_wanted_lines_say_to_where_they_have_read(
    opened: Callable[[], AnyJournal], before: int | None, limit: int, ids: list[int], read_to: int | None
) -> None:
    """`read_to` is the line before the next match, or None at the first line; the next page starts there."""
    log = opened()
    for at_ms in range(30):
        await log.append(line(at_ms))
    page = await log.acts(before, 0, limit, lambda act: act["id"] % 5 == 0)
    assert [act["id"] for act in page.lines] == ids
    assert page.read_to == (None if read_to is None else (read_to, read_to - 1))
    await log.stop()
