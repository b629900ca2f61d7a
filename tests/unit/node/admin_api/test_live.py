"""One viewer's stream of live events, and the event for an unavailable state."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from isthmus.node.admin_api import live
from isthmus.node.admin_api.live import HEARTBEAT, RETRY, LiveAdmin, Viewer, newest_series
from isthmus.node.http.router import Router
from isthmus.repl.model.errors import NotReady


class FakeConnection:
    """A connection that notes that it was cut."""

    def __init__(self) -> None:
        self.aborted = False

    def reply(self, status: int, headers: Any, body: bytes, *, head: bool) -> bool:
        """See Connected."""
        raise AssertionError(f"a stream is no whole answer: {status} {headers!r} {body!r} {head}")

    def abort(self) -> None:
        """See Connected."""
        self.aborted = True


def viewer(connection: FakeConnection | None = None, lifetime_s: float = 60.0) -> Viewer:
    return Viewer("", connection, asyncio.get_running_loop().time() + lifetime_s)


async def test_a_slow_viewer_gets_the_newest_of_each_kind() -> None:
    """While it does not read, a new event replaces the waiting one of the same kind; both kinds are sent then, each
    once. An end of the stream meanwhile takes effect as soon as it reads."""
    one = viewer()
    stream = one.chunks()
    assert await anext(stream) == RETRY
    for n in range(5):
        one.put("cluster", b"c%d" % n)
        one.put("sample", b"s%d" % n)
    assert [await anext(stream), await anext(stream)] == [b"c4", b"s4"]
    one.put("sample", b"s5")
    assert await anext(stream) == b"s5"
    one.end()
    async with asyncio.timeout(live.HEARTBEAT_S / 2):
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_silent_stream_has_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an event a comment is sent, and later events follow it."""
    monkeypatch.setattr(live, "HEARTBEAT_S", 0.01)
    one = viewer()
    stream = one.chunks()
    assert await anext(stream) == RETRY
    assert await anext(stream) == HEARTBEAT
    one.put("sample", b"s")
    assert await anext(stream) == b"s"
    await stream.aclose()


async def test_a_stream_ends_after_its_time() -> None:
    """Then the browser connects again, and its token is checked again."""
    one = viewer(lifetime_s=0.0)
    one.put("sample", b"s")
    assert [chunk async for chunk in one.chunks()] == []


async def test_an_end_cuts_off_only_who_does_not_read() -> None:
    """The connection of a viewer that does not read is cut; one that waits for events ends in order."""
    deaf, listening = FakeConnection(), FakeConnection()
    for connection, reads in ((deaf, False), (listening, True)):
        one = viewer(connection)
        stream = one.chunks()
        assert await anext(stream) == RETRY
        following: asyncio.Future[bytes] | None = asyncio.ensure_future(anext(stream)) if reads else None
        await asyncio.sleep(0)
        one.end()
        if following is not None:
            with pytest.raises(StopAsyncIteration):
                await following
        await stream.aclose()
    assert (deaf.aborted, listening.aborted) == (True, False)


async def test_a_state_that_cannot_be_told_is_an_event() -> None:
    """The viewer gets the reason instead of the state; this also holds for a bug, and the next round continues."""
    errors: list[Exception] = [NotReady("no records"), ValueError("a bug")]

    class FailingView:
        async def cluster_document(self) -> dict[str, Any]:
            """See ClusterView."""
            if errors:
                raise errors.pop(0)
            return {"state": "online"}

    admin = LiveAdmin(None, FailingView(), Router())  # type: ignore[arg-type]
    one = viewer()
    admin._viewers.add(one)
    stream = one.chunks()
    await anext(stream)
    one.put("cluster", b"old")
    found = []
    for _ in range(3):
        await admin._send_cluster()
        kind, data = (await anext(stream)).decode().strip().split("\n")
        found.append((kind, json.loads(data.removeprefix("data: "))))
    assert found[0] == ("event: trouble", {"error": "no records", "reason": "not-ready"})
    assert (found[1][0], found[1][1]["reason"]) == ("event: trouble", "internal")
    assert found[2] == ("event: cluster", {"state": "online"})
    await stream.aclose()


def test_a_node_that_has_no_sample_yet_has_no_numbers() -> None:
    """An event that never happened counts 0 in a sample, and is unknown without one."""
    none = newest_series({}, "default")
    assert set(none.values()) == {None}
    some = newest_series(
        {("process.rss_bytes", ""): 5.0, ("queue.gaps", "a,b"): 2.0, ("isr.worst", "default"): -999.0}, "default"
    )
    assert some["replicate.write.per_s"] == 0
    assert some["replicate.write.average_ms"] is None
    assert some["queue.gaps:a%2Cb"] == 2
    assert (some["isr.members"], some["isr.min_isr"]) == (1, 2)
