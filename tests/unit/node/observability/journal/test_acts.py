"""The journal's acts: numbers, rotation, restarts, torn lines, full disks, bounded waiting."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from isthmus.node.observability import journal, line_files
from isthmus.node.observability.journal import Journal
from isthmus.node.observability.line_files import LinePage
from tests.support.journals import journal_in


def line(at_ms: int, act: str = "set option x") -> dict[str, Any]:
    """A line as `node.http.audit` makes it, reduced to the fields of these tests."""
    return {"at_ms": at_ms, "who": {"by": "ann"}, "what": {"act": act, "request": None}}


@asynccontextmanager
async def opened(directory: Path, file_bytes: int = 1_000_000, files: int = 8) -> AsyncIterator[Journal]:
    """A journal that is stopped at the end."""
    found = journal_in(directory, file_bytes, files)
    try:
        yield found
    finally:
        await found.stop()


def ids(page: LinePage) -> list[int]:
    """The ids of a page."""
    return [act["id"] for act in page.lines]


def files(directory: Path) -> list[Path]:
    """The log's files, the oldest first."""
    return sorted((directory / "audit").iterdir())


def _has(file: Path, number: int) -> bool:
    return any(json.loads(each)["id"] == number for each in file.read_text().splitlines())


async def test_lines_are_numbered_and_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    """Each line is one JSON object, in the order of the calls, readable only by the node's user."""
    async with opened(tmp_path) as log:
        for at_ms in (5, 6, 7):
            await log.append(line(at_ms))
        (file,) = files(tmp_path)
        assert [json.loads(each)["id"] for each in file.read_text().splitlines()] == [1, 2, 3]
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert log.counts == {"written": 3, "unsynced": 0, "lost": 0}


async def test_pages_go_from_the_newest_to_the_oldest(tmp_path: Path) -> None:
    """A page ends at its limit and sets `more`; the next one begins below an id; lines before `since` are left out."""
    async with opened(tmp_path) as log:
        for at_ms in range(10, 17):
            await log.append(line(at_ms))
        first = await log.acts(None, 0, 3)
        assert (ids(first), first.more) == ([7, 6, 5], True)
        rest = await log.acts(5, 0, 10)
        assert (ids(rest), rest.more) == ([4, 3, 2, 1], False)
        assert ids(await log.acts(None, 15, 10)) == [7, 6]
        assert ids(await log.acts(1, 0, 10)) == []
        (file,) = files(tmp_path)
        os.utime(file, (10, 10))  # the last change, in seconds
        assert ids(await log.acts(None, 10_000 + line_files.CLOCK_SLACK_MS + 1, 10)) == []


async def test_a_page_reads_a_bounded_part_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If few lines match, the page ends early and reports how far it has read; the next one begins there. Lines older
    than `since` by more than the clock tolerance end the reading."""
    monkeypatch.setattr(line_files, "SCAN_BYTES_MAX", 250)
    async with opened(tmp_path, file_bytes=400, files=100) as log:
        for at_ms in range(20):
            await log.append(line(at_ms, "rare" if at_ms == 4 else "usual"))
        found, before, pages = [], None, 0
        while True:
            page = await log.acts(before, 0, 10, lambda each: each["what"]["act"] == "rare")
            found += ids(page)
            pages += 1
            assert page.read_to is not None
            assert page.read_to[1] == page.read_to[0] - 1
            if not page.more:
                break
            assert before is None or page.read_to[0] < before
            before = page.read_to[0]
        assert (found, page.read_to, pages > 4) == ([5], (1, 0), True)
        hour = line_files.CLOCK_SLACK_MS
        await log.append(line(hour + 7))
        monkeypatch.setattr(line_files, "SCAN_BYTES_MAX", 1_000_000)
        page = await log.acts(None, hour + 6, 10)
        assert (ids(page), page.more, page.read_to) == ([21], False, (7, 6))


async def test_a_log_that_was_never_written_has_no_lines(tmp_path: Path) -> None:
    """Reading makes no directory."""
    async with opened(tmp_path) as log:
        assert await log.acts(None, 0, 10) == LinePage([], False, 0, None)
    assert not os.listdir(tmp_path)


async def test_files_are_rotated_and_the_oldest_deleted(tmp_path: Path) -> None:
    """No file is larger than its limit, and no more of them stay than are allowed; pages span files."""
    async with opened(tmp_path, file_bytes=1_000, files=3) as log:
        for at_ms in range(100):
            await log.append(line(at_ms))
        kept = files(tmp_path)
        assert len(kept) == 3
        assert all(0 < file.stat().st_size <= 1_000 for file in kept)
        page = await log.acts(None, 0, 100)
        assert ids(page) == list(range(100, int(kept[0].stem) - 1, -1))
        assert len(page.lines) > 20
        assert ids(await log.acts(int(kept[1].stem), 0, 100))[-1] == int(kept[0].stem)


async def test_a_lower_limit_holds_from_the_next_file_on(tmp_path: Path) -> None:
    """A reload changes size and number."""
    async with opened(tmp_path, file_bytes=500, files=50) as log:
        for at_ms in range(40):
            await log.append(line(at_ms))
        assert len(files(tmp_path)) > 5
        log.limit(500, 2)
        for at_ms in range(10):
            await log.append(line(at_ms))
        assert len(files(tmp_path)) == 2


async def test_a_restart_goes_on_in_the_same_file(tmp_path: Path) -> None:
    """Ids continue, and nothing is overwritten."""
    for run in range(3):
        async with opened(tmp_path) as log:
            await log.append(line(run))
    async with opened(tmp_path) as log:
        assert ids(await log.acts(None, 0, 10)) == [3, 2, 1]
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("torn", [b'{"id":4,"at_ms":', b"\xff\xfe", b"{", b"null", b'{"id":"4","at_ms":1}'])
async def test_a_torn_last_line_costs_only_itself(tmp_path: Path, torn: bytes) -> None:
    """A crash amid a write leaves a piece: the next line begins behind it, and readers count it."""
    async with opened(tmp_path) as log:
        for at_ms in range(3):
            await log.append(line(at_ms))
    (file,) = files(tmp_path)
    with file.open("ab") as appended:
        appended.write(torn)
    async with opened(tmp_path) as log:
        before = await log.acts(None, 0, 10)
        assert (ids(before), before.unreadable) == ([3, 2, 1], 1)
        await log.append(line(9))
        after = await log.acts(None, 0, 10)
        assert (ids(after), after.unreadable) == ([4, 3, 2, 1], 1)
    assert file.read_bytes().count(torn + b"\n") == 1


async def test_a_file_that_is_torn_alone_keeps_its_place_in_the_order(tmp_path: Path) -> None:
    """The newest file has no complete line: ids continue after the one in its name."""
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "000000000040.jsonl").write_bytes(b'{"id":40')
    async with opened(tmp_path) as log:
        await log.append(line(1))
        assert ids(await log.acts(None, 0, 10)) == [41]


async def test_on_a_full_disk_lines_are_lost_counted_and_marked(tmp_path: Path) -> None:
    """append returns nevertheless. The loss is logged with the operator and the act; the next written line has the
    number of lost lines before it, and their ids are not used."""
    async with opened(tmp_path) as log:
        await log.append(line(1))
        (file,) = files(tmp_path)
    kept = file.rename(tmp_path / "kept")
    file.symlink_to("/dev/full")
    async with opened(tmp_path) as log:
        with structlog.testing.capture_logs() as events:
            await log.append(line(2, "drain nodes"))
            await log.append(line(3))
        assert [(e["event"], e["lines"], e["act"], e["who"]) for e in events] == [
            ("audit.lost", 1, "drain nodes", {"by": "ann"}), ("audit.lost", 1, "set option x", {"by": "ann"}),
        ]  # fmt: skip
        assert "no space" in events[0]["why"].lower()
        assert log.counts == {"written": 0, "unsynced": 0, "lost": 2}
        file.unlink()
        kept.rename(file)
        log._acts.close()  # the next line opens a file again, as after a rotation
        await log.append(line(4))
        first, *_ = (await log.acts(None, 0, 10)).lines
        assert (first["at_ms"], first["lost_before"]) == (4, 2)
        await log.append(line(5))
        assert "lost_before" not in (await log.acts(None, 0, 1)).lines[0]


async def test_a_disk_that_fills_amid_a_line_tears_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line was written before the disk was full: the next line begins on a new line."""
    write, room = os.write, [200]

    def short(fd: int, data: Any) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(fd, bytes(data[: room[0]]))
        room[0] -= written
        return written

    async with opened(tmp_path) as log:
        monkeypatch.setattr(line_files.os, "write", short)
        for at_ms in range(3):
            await log.append(line(at_ms))
        room[0] = 1_000_000
        await log.append(line(9))
        page = await log.acts(None, 0, 10)
        assert ([act["at_ms"] for act in page.lines], page.unreadable) == ([9, 1, 0], 1)
        assert page.lines[0]["lost_before"] == 1


async def test_a_failed_sync_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is written and may not survive a power failure."""

    def failing(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with opened(tmp_path) as log:
        await log.append(line(1))
        monkeypatch.setattr(line_files.os, "fsync", failing)
        with structlog.testing.capture_logs() as events:
            await log.append(line(2))
        assert [event["event"] for event in events] == ["audit.unsynced"]
        assert log.counts == {"written": 1, "unsynced": 1, "lost": 0}
        assert ids(await log.acts(None, 0, 10)) == [2, 1]


async def test_a_disk_that_hangs_bounds_the_wait_and_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """append stops waiting after WAIT_S; beyond QUEUE_MAX lines new ones are lost; waiting ones are written when the
    disk recovers."""
    monkeypatch.setattr(journal, "WAIT_S", 0.05)
    monkeypatch.setattr(journal, "QUEUE_MAX", 3)
    goes_on, sync = threading.Event(), os.fsync

    def hanging(fd: int) -> None:
        assert goes_on.wait(60)
        sync(fd)

    monkeypatch.setattr(line_files.os, "fsync", hanging)
    async with opened(tmp_path) as log:
        with structlog.testing.capture_logs() as events:
            await log.append(line(0))  # in the thread
            await asyncio.gather(*(log.append(line(at_ms)) for at_ms in range(1, 6)))
        assert [event["why"] for event in events] == ["too many lines wait for the disk"] * 2
        goes_on.set()
        monkeypatch.setattr(journal, "WAIT_S", 10)
        assert log._writing is not None
        await log._writing
        await log.append(line(6))
        page = await log.acts(None, 0, 10)
        assert [act["at_ms"] for act in page.lines] == [6, 3, 2, 1, 0]
        assert sum(act.get("lost_before", 0) for act in page.lines) == log.counts["lost"] == 2


async def test_a_line_that_is_no_json_is_lost_alone(tmp_path: Path) -> None:
    """Lines before and behind it are written, when they come one by one and when they come together."""
    lines = [line(1), {**line(2), "before": object()}, line(3)]
    async with opened(tmp_path) as log:
        with structlog.testing.capture_logs() as events:
            for each in lines:
                await log.append(each)
            await asyncio.gather(*map(log.append, lines))
        assert [event["event"] for event in events] == ["audit.write_failed", "audit.lost", "audit.lost"]
        assert [act["at_ms"] for act in (await log.acts(None, 0, 10)).lines] == [3, 1, 3, 1]
        assert log.counts == {"written": 4, "unsynced": 0, "lost": 2}


async def test_a_file_that_cannot_be_read_is_left_out_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has the lines of the others, and names the file. If it is the newest one, the next line begins a new
    file, with an id above all that it can have."""
    async with opened(tmp_path, file_bytes=300, files=100) as log:
        for at_ms in range(9):
            await log.append(line(at_ms))
    kept = files(tmp_path)
    backwards, damaged = line_files._backwards, {kept[1], kept[-1]}

    def failing(path: Path) -> Any:
        if path in damaged:
            raise OSError(errno.EIO, "Input/output error")
        return backwards(path)

    monkeypatch.setattr(line_files, "_backwards", failing)
    async with opened(tmp_path, file_bytes=300, files=100) as log:
        await log.append(line(9))
        page = await log.acts(None, 0, 100)
        lost = {number for number in range(1, 10) if any(_has(file, number) for file in damaged)}
        assert 2 <= len(lost) <= 6
        assert ids(page)[1:] == [number for number in range(9, 0, -1) if number not in lost]
        assert ids(page)[0] > 9
        assert (page.unread, page.more) == (f"{kept[-1].name} cannot be read: Input/output error", False)
        assert files(tmp_path)[:-1] == kept


async def test_a_directory_without_place_is_no_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that the file does not have by itself, such as too many descriptors, begins no new file: the line is
    lost, and the next one goes on."""
    async with opened(tmp_path) as log:
        await log.append(line(1))
    opens, full = os.open, [True]

    def failing(path: Any, *rest: Any) -> int:
        if full[0] and str(path).endswith(".jsonl"):
            raise OSError(errno.EMFILE, "Too many open files")
        return opens(path, *rest)

    monkeypatch.setattr(line_files.os, "open", failing)
    async with opened(tmp_path) as log:
        with structlog.testing.capture_logs():
            await log.append(line(2))
        full[0] = False
        await log.append(line(3))
        assert [(act["id"], act["at_ms"]) for act in (await log.acts(None, 0, 10)).lines] == [(3, 3), (1, 1)]
    assert len(files(tmp_path)) == 1


async def test_a_close_that_fails_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be that of another file a moment later: the next line is not written there."""
    other = tmp_path / "other"
    close = os.close

    def failing(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "Input/output error")

    async with opened(tmp_path) as log:
        await log.append(line(1))
        number = log._acts._fd
        monkeypatch.setattr(line_files.os, "close", failing)
        log._acts.close()
        monkeypatch.setattr(line_files.os, "close", close)
        with other.open("wb") as taken:
            assert taken.fileno() == number
            await log.append(line(2))
            assert ids(await log.acts(None, 0, 10)) == [2, 1]
    assert other.read_bytes() == b""


async def test_nothing_is_written_after_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acts that waited for a disk that hung during the stop are not written when it goes on, as the data directory may
    be another process's by then; a later one is lost, and counted."""
    monkeypatch.setattr(journal, "WAIT_S", 0.05)
    goes_on, sync = threading.Event(), os.fsync

    def hanging(fd: int) -> None:
        assert goes_on.wait(60)
        sync(fd)

    log = journal_in(tmp_path, 1_000_000, 8)
    monkeypatch.setattr(line_files.os, "fsync", hanging)
    await log.append(line(1))
    await log.append(line(2))
    await log.stop()
    goes_on.set()
    assert log._writing is not None
    await log._writing
    with structlog.testing.capture_logs() as events:
        await log.append(line(3))
    assert [event["why"] for event in events] == ["the node has stopped"]
    (file,) = files(tmp_path)
    assert [json.loads(each)["at_ms"] for each in file.read_text().splitlines()] == [1]
    assert log._pool is None


async def test_many_writers_at_once_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of concurrent requests are all there, each once, with few syncs."""
    syncs, sync = [0], os.fsync

    def counted(fd: int) -> None:
        syncs[0] += 1
        sync(fd)

    monkeypatch.setattr(line_files.os, "fsync", counted)
    async with opened(tmp_path) as log:
        await asyncio.gather(*(log.append(line(at_ms)) for at_ms in range(200)))
        page = await log.acts(None, 0, 1_000)
        assert ids(page) == list(range(200, 0, -1))
        assert {act["at_ms"] for act in page.lines} == set(range(200))
    assert syncs[0] < 20


async def test_two_logs_on_one_directory_tear_no_line(tmp_path: Path) -> None:
    """The data directory's lock allows one node; were there two, each line would still be whole."""
    async with opened(tmp_path) as one, opened(tmp_path) as other:
        await asyncio.gather(*(each.append(line(at_ms)) for at_ms in range(100) for each in (one, other)))
        page = await one.acts(None, 0, 1_000)
        assert (len(page.lines), page.unreadable) == (200, 0)


async def test_a_line_that_is_too_long_loses_its_values(tmp_path: Path) -> None:
    """The operator and the act stay; the line is marked as cut."""
    huge = {**line(1), "before": "x" * 50_000, "after": "y", "what": {"act": "a", "request": {"k": "z" * 50_000}}}
    async with opened(tmp_path) as log:
        await log.append(huge)
        (found,) = (await log.acts(None, 0, 1)).lines
        assert (found["before"], found["what"], found["cut"]) == (None, {"act": "a", "request": None}, True)
        assert found["who"] == {"by": "ann"}


async def test_texts_of_any_kind_come_back(tmp_path: Path) -> None:
    """Newlines, NUL, other scripts and half a surrogate pair stay within their line."""
    text = 'a\nb\x00"\\ Grüße \U0001f600 \ud800'
    async with opened(tmp_path) as log:
        await log.append(line(1, text))
        await log.append(line(2))
        page = await log.acts(None, 0, 10)
        assert ([act["what"]["act"] for act in page.lines], page.unreadable) == (["set option x", text], 0)


async def test_a_long_file_is_read_backward_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are complete for any block size."""
    async with opened(tmp_path) as log:
        for at_ms in range(20):
            await log.append(line(at_ms))
        for block in (1, 7, 100, 1_000):
            monkeypatch.setattr(line_files, "BLOCK_BYTES", block)
            page = await log.acts(None, 0, 100)
            assert (ids(page), page.unreadable) == (list(range(20, 0, -1)), 0)


async def test_a_page_of_large_lines_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits into one answer between nodes, and the next page continues after it."""
    monkeypatch.setattr(line_files, "PAGE_BYTES_MAX", 1_000)
    async with opened(tmp_path) as log:
        for at_ms in range(30):
            await log.append(line(at_ms))
        found: list[int] = []
        while page := await log.acts(found[-1] if found else None, 0, 1_000):
            assert len(page.lines) < 20
            found += ids(page)
            if not page.more:
                break
        assert found == list(range(30, 0, -1))
