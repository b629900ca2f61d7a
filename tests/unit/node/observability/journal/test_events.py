"""The journal's events: restarts, limits beside those of acts, repeats, full disks, secrets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing

from isthmus.node.http.authorization import CREDENTIAL_BYTES_MAX
from isthmus.node.observability import events, journal, line_files
from isthmus.node.observability.events import TEXT_MAX, RecentEvents
from isthmus.node.observability.journal import Journal
from tests.support.journals import journal_in
from tests.support.waiting import eventually

ACT = {"at_ms": 1, "who": {"by": "ann"}, "what": {"act": "set option x", "request": None}}


def keep(recent: RecentEvents, name: str = "isr.shrunk", **fields: object) -> None:
    """Log an event."""
    recent.keep(None, "info", {"event": name, **fields})


@asynccontextmanager
async def started(
    directory: Path, recent: RecentEvents | None = None, secrets: Sequence[str] = ()
) -> AsyncIterator[tuple[Journal, RecentEvents]]:
    """A journal that writes events, as that of a process with these events; stopped at the end."""
    recent = recent or RecentEvents()
    found = journal_in(directory, recent=recent, secrets=secrets)
    found.start()
    try:
        yield found, recent
    finally:
        await found.stop()


def files(directory: Path) -> list[Path]:
    """The files of events, the oldest first."""
    return sorted((directory / "audit").glob("events-*"))


def on_disk(directory: Path) -> list[dict[str, Any]]:
    """The lines of events, the oldest first."""
    return [json.loads(line) for file in files(directory) for line in file.read_text().splitlines() if line]


def partitions(lines: Sequence[dict[str, Any]]) -> list[int]:
    """The numbers that events of `keep` have."""
    return [int(line["text"].removeprefix("partition ").partition(",")[0]) for line in lines]


async def test_events_survive_a_restart(tmp_path: Path) -> None:
    """Those from before the journal was started, those since, and those of the process before are one order, each once
    and with the id that it had; a line has kind, severity, subject and text."""
    recent = RecentEvents()
    keep(recent, partition=1)
    async with started(tmp_path, recent) as (log, _):
        keep(recent, "storage.full", path="/data", why="no space")
        first = (await log.events(0, 10)).lines
    assert [line["event"] for line in first] == ["isr.shrunk", "storage.full"]
    assert [line["id"] for line in on_disk(tmp_path)] == [1, 2]
    assert files(tmp_path)[0].stat().st_mode & 0o777 == 0o600
    async with started(tmp_path) as (log, recent):
        keep(recent, partition=3)
        found = await log.events(0, 10)
        assert found.unread == ""
        assert [line["event_id"] for line in found.lines[:2]] == [line["event_id"] for line in first]
        assert [line["event"] for line in found.lines] == ["isr.shrunk", "storage.full", "isr.shrunk"]
        full = found.lines[1]
        assert {name: full[name] for name in ("node", "kind", "level", "subject", "text")} == {
            "node": "n1", "kind": "disk", "level": "info", "subject": "path /data",
            "text": "path /data, why no space",
        }  # fmt: skip
        assert [line["event"] for line in (await log.events(0, 1, "disk")).lines] == ["storage.full"]
        assert (await log.events(recent.began_ms + 1_000_000, 10)).lines == []


async def test_events_of_all_threads_are_written(tmp_path: Path) -> None:
    """An event that another thread logs is on the disk soon, without one of the loop's."""
    async with started(tmp_path) as (log, recent):
        thread = threading.Thread(target=lambda: [keep(recent, partition=number) for number in range(5)])
        thread.start()
        thread.join()

        async def written() -> bool:
            return log.event_counts["written"] == 5

        await eventually(written, "the events are written")
        assert partitions(on_disk(tmp_path)) == [0, 1, 2, 3, 4]


async def test_what_memory_no_longer_has_is_read_from_the_files(tmp_path: Path) -> None:
    """No event is missing or there twice where memory and files meet, for any limit."""
    async with started(tmp_path, RecentEvents(4)) as (log, recent):
        for number in range(20):
            keep(recent, partition=number)
            await log.events(1 << 60, 1)
            await asyncio.wait([log._writing] if log._writing else [asyncio.ensure_future(asyncio.sleep(0))])
        assert partitions((await log.events(0, 100)).lines) == [*range(20)]
        for limit in range(1, 20):
            assert partitions((await log.events(0, limit)).lines) == [*range(20)][-limit:]


async def test_events_push_out_no_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files have limits of their own: however many there are, the acts are all there, and the disk is bounded."""
    monkeypatch.setattr(journal, "EVENTS_FILE_BYTES", 5_000)
    monkeypatch.setattr(journal, "EVENTS_FILES", 3)
    async with started(tmp_path) as (log, recent):
        for at_ms in range(5):
            await log.append({**ACT, "at_ms": at_ms})
        for number in range(900):
            keep(recent, partition=number)
        await log.append({**ACT, "at_ms": 5})
        assert [act["at_ms"] for act in (await log.acts(None, 0, 100)).lines] == [5, 4, 3, 2, 1, 0]
    assert log.event_counts == {"written": 900, "repeated": 0, "lost": 0}
    assert len(files(tmp_path)) == 3
    assert all(file.stat().st_size <= 5_000 for file in files(tmp_path))
    assert partitions(on_disk(tmp_path))[-1] == 899


async def test_what_repeats_is_written_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one event and subject REPEATS_MAX, and of one event STORM_MAX, are written in REPEATS_S, and the next one has
    the number of those left out; memory has all."""
    now_s = [0.0]
    monkeypatch.setattr(events, "REPEATS_MAX", 3)
    monkeypatch.setattr(events, "STORM_MAX", 8)
    monkeypatch.setattr(events, "LogLimit", lambda **limits: line_limit(lambda: now_s[0], **limits))
    line_limit = journal.LogLimit
    async with started(tmp_path) as (log, recent):
        for number in range(10):
            keep(recent, "sink.peer_failed", peer="west", attempt=number)
        for number in range(10):
            keep(recent, "sink.peer_failed", peer=f"p{number}")
        now_s[0] = events.REPEATS_S
        keep(recent, "sink.peer_failed", peer="west", attempt=10)
        assert len((await log.events(0, 100)).lines) == 21
    texts = [line["text"] for line in on_disk(tmp_path)]
    assert texts[:3] == [f"peer west, attempt {number}" for number in range(3)]
    assert texts[3:8] == [f"peer p{number}" for number in range(5)]
    assert texts[8:] == ["peer west, attempt 10 (12 like it left out before)"], "7 of its subject and 5 of its name"
    assert log.event_counts == {"written": 9, "repeated": 12, "lost": 0}


async def test_on_a_full_disk_events_wait_in_memory(tmp_path: Path) -> None:
    """They are shown all the same, the failure among them, and written when there is space; those for which memory had
    no place meanwhile are lost: counted, and marked by the next line."""
    async with started(tmp_path) as (_, recent):
        keep(recent, partition=0)
    (file,) = files(tmp_path)
    kept = file.rename(tmp_path / "kept")
    file.symlink_to("/dev/full")
    recent = RecentEvents(4)
    async with started(tmp_path, recent) as (log, _):
        with structlog.testing.capture_logs() as logged:
            for number in range(1, 8):
                keep(recent, partition=number)
                await asyncio.sleep(0)
                await asyncio.wait([log._writing]) if log._writing else None
            found = await log.events(0, 10)
        assert [(each["event"], "no space" in each["why"].lower()) for each in logged] == [
            ("journal.events_wait", True)
        ]
        assert partitions(found.lines) == [4, 5, 6, 7]
        assert log.event_counts["written"] == 0
        file.unlink()
        kept.rename(file)
        keep(recent, partition=8)
    assert partitions(on_disk(tmp_path)) == [0, 5, 6, 7, 8]
    assert [line.get("lost_before") for line in on_disk(tmp_path)] == [None, 4, None, None, None]
    assert [line["id"] for line in on_disk(tmp_path)] == [1, 6, 7, 8, 9]
    assert log.event_counts == {"written": 4, "repeated": 0, "lost": 4}


async def test_a_full_disk_is_tried_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many events come meanwhile, there is one attempt in RETRY_S; what waits is written when there is space,
    without a new event."""
    async with started(tmp_path) as (_, recent):
        keep(recent, partition=0)
    (file,) = files(tmp_path)
    kept = file.rename(tmp_path / "kept")
    file.symlink_to("/dev/full")
    writes, write = [0], line_files.LineFiles.write

    def counted(*args: Any, **kinds: Any) -> Any:
        writes[0] += 1
        return write(*args, **kinds)

    monkeypatch.setattr(line_files.LineFiles, "write", counted)
    async with started(tmp_path) as (log, recent):
        with structlog.testing.capture_logs():
            for number in range(1, 50):
                keep(recent, partition=number)
                await asyncio.sleep(0)
                await asyncio.wait([log._writing]) if log._writing else None
        assert (writes, log.event_counts["written"]) == ([1], 0)
        file.unlink()
        kept.rename(file)
        log._end_pause()

        async def written() -> bool:
            return log.event_counts["written"] == 49

        await eventually(written, "the events that waited are written")
        assert partitions(on_disk(tmp_path)) == [*range(50)]


async def test_an_event_that_is_no_line_is_lost_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not tried for ever; those before and behind it are written, and the next line counts it."""
    encoded = line_files._encoded

    def fails(line: dict[str, Any]) -> bytes:
        if "partition 2" in line["text"]:
            raise ValueError(line)
        return encoded(line)

    monkeypatch.setattr(line_files, "_encoded", fails)
    async with started(tmp_path) as (log, recent):
        with structlog.testing.capture_logs() as logged:
            for number in (1, 2, 3, 4):
                keep(recent, partition=number)
            await asyncio.sleep(0)
            assert log._writing is not None
            await log._writing
        assert [each["event"] for each in logged] == ["journal.write_failed"]
        assert partitions(on_disk(tmp_path)) == [1, 3, 4]
    assert on_disk(tmp_path)[1]["lost_before"] == 1
    assert log.event_counts == {"written": 3, "repeated": 0, "lost": 1}


async def test_a_known_secret_is_not_on_the_disk(tmp_path: Path) -> None:
    """It is removed wherever it stands; what looks like a secret is gone before."""
    async with started(tmp_path, secrets=["known-secret-1"]) as (_, recent):
        keep(recent, "security.doubt", path="/x/known-secret-1", why="known-secret-1", token="abcdefgh")
    (line,) = on_disk(tmp_path)
    assert (line["subject"], line["text"]) == ("path /x/***", "path /x/***, why ***, token ***")


@pytest.mark.parametrize("before", range(TEXT_MAX - 45, TEXT_MAX + 1))
async def test_no_part_of_a_known_secret_is_left_where_a_text_is_cut(tmp_path: Path, before: int) -> None:
    """Wherever a token of any accepted length stands, it is removed before the text is cut to TEXT_MAX."""
    secret = "k3Y" * (CREDENTIAL_BYTES_MAX // 3)
    async with started(tmp_path, secrets=[secret]) as (log, recent):
        keep(recent, "security.doubt", why="." * before + secret)
        found = (await log.events(0, 10)).lines
    for (line,) in (on_disk(tmp_path), found):
        assert "k3" not in line["text"]
        assert len(line["text"]) <= TEXT_MAX


async def test_files_that_cannot_be_read_leave_the_events_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has those, and why older ones are missing: of a disk that fails, and of one that hangs."""
    (tmp_path / "audit").write_text("no directory")
    recent = RecentEvents()
    keep(recent, partition=1)
    log = journal_in(tmp_path, recent=recent)
    found = await log.events(0, 10)
    assert (partitions(found.lines), "cannot be read" in found.unread) == ([1], True)
    monkeypatch.setattr(journal, "READ_S", 0)
    assert "within 0 s" in (await log.events(0, 10)).unread
    later_ms = recent.complete_from_ms() + line_files.CLOCK_SLACK_MS + 1_000
    assert (await log.events(later_ms, 10)).unread == "", "memory has all since it began"
    await log.stop()


async def test_one_file_that_cannot_be_read_leaves_the_events_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named."""
    monkeypatch.setattr(journal, "EVENTS_FILE_BYTES", 1_000)
    async with started(tmp_path) as (_, recent):
        for number in range(12):
            keep(recent, partition=number)
    oldest, *others = files(tmp_path)
    assert others
    rest = [json.loads(line) for file in others for line in file.read_text().splitlines()]
    oldest.unlink()
    oldest.mkdir()
    async with started(tmp_path) as (log, _):
        found = await log.events(0, 100)
    assert found.lines == rest
    assert found.unread == f"{oldest.name} cannot be read: Is a directory"


@pytest.mark.parametrize("behind_ms", [1_800_000, 3 * 3_600_000])
async def test_a_clock_that_is_behind_when_a_machine_starts_hides_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind_ms: int
) -> None:
    """The new process logs before its clock is set: what happened just before the end of the one before it, at a later
    time, is found all the same, also after a further start."""
    now_ms = [10 * 3_600_000]
    monkeypatch.setattr(events, "machine", lambda: SimpleNamespace(wall_ns=lambda: now_ms[0] * 1_000_000))
    async with started(tmp_path) as (_, recent):
        keep(recent, "storage.full")
    now_ms[0] -= behind_ms
    async with started(tmp_path) as (log, recent):
        keep(recent, "node.up")
        now_ms[0] += behind_ms + 60_000
        keep(recent, "node.ready")
        since_ms = now_ms[0] - 600_000
        assert [line["event"] for line in (await log.events(since_ms, 10)).lines] == ["storage.full", "node.ready"]
    async with started(tmp_path) as (log, recent):
        keep(recent, "node.starting")
        found = (await log.events(since_ms, 10)).lines
        assert [line["event"] for line in found] == ["storage.full", "node.ready", "node.starting"]


async def test_a_search_goes_through_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rare kind is found behind many others, although each reading is bounded."""
    async with started(tmp_path) as (_, recent):
        keep(recent, "storage.full")
        for number in range(200):
            keep(recent, partition=number)
    monkeypatch.setattr(line_files, "SCAN_BYTES_MAX", 1_000)
    async with started(tmp_path) as (log, _):
        assert [line["event"] for line in (await log.events(0, 5, "disk")).lines] == ["storage.full"]


async def test_nothing_is_written_after_the_stop(tmp_path: Path) -> None:
    """An event that comes then starts no thread."""
    async with started(tmp_path) as (log, recent):
        keep(recent, partition=1)
    keep(recent, partition=2)
    log._look_for_events()
    await asyncio.sleep(0)
    assert partitions(on_disk(tmp_path)) == [1]
    assert log._pool is None
