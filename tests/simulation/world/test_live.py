"""History and live events of three nodes, through their admin listeners, and the cost of viewers, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pytest

from isthmus.node.admin_api import live
from isthmus.node.daemon import Node
from isthmus.node.http import listener
from isthmus.node.http.connection import STALL_TIMEOUT_S
from isthmus.repl.machine import machine
from tests.simulation.world.asking import ask
from tests.simulation.world.node import ADMIN_PORT, HTTP_PORT
from tests.simulation.world.three_nodes import (
    address,
    cut_off,
    get,
    lived,
    on_its_loop,
    samples_more,
    short_lived_world,
    streams,
    world,
)
from tests.simulation.world.world import World
from tests.support.waiting import eventually

__all__ = ("short_lived_world", "world")

TYPED: Final = "replicate.write.per_s"

WRITES: Final = 60


class EventStream:
    """A viewer that reads: its events, as a browser's EventSource would see them."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._text = b""

    async def event(self, kind: str) -> Any:
        """The JSON of the next event of a kind; others before it are skipped. Raises EOFError at the end."""
        while True:
            block, end, rest = self._text.partition(b"\n\n")
            if not end:
                chunk = await self._reader.readline()
                if not chunk or not int(chunk, 16):
                    raise EOFError
                self._text += (await self._reader.readexactly(int(chunk, 16) + 2))[:-2]
                continue
            self._text = rest
            lines = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
            if lines.get(b"event") == kind.encode():
                return json.loads(lines[b"data"])


@asynccontextmanager
async def viewing(node: Node, query: str = "") -> AsyncIterator[EventStream]:
    """A stream of a node that is read."""
    reader, writer = await asyncio.open_connection(address(node), ADMIN_PORT)
    try:
        writer.write(f"GET /admin/live{query} HTTP/1.1\r\nHost: n\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0], head
        assert b"text/event-stream" in head
        yield EventStream(reader)
    finally:
        writer.close()


def last(values: list[float | None]) -> float:
    """The newest known number."""
    return next(value for value in reversed(values) if value is not None)


def test_any_node_shows_the_history_of_all(world: World) -> None:
    """Writes through one node are in the history of the leaders, merged over the cluster and by bucket type; all nodes
    have the same time slots, those before the start are unknown, and wrong queries are refused with a valid form."""

    async def claim(nodes: dict[str, Node]) -> None:
        n1, n2 = nodes["east-1"], nodes["east-2"]
        for number in range(WRITES):
            path = f"/types/default/buckets/b/keys/{number}"
            assert (await ask(address(n1), HTTP_PORT, "PUT", path, {})).status == 204
        await samples_more(nodes)
        wanted = f"{TYPED},isr.members,isr.min_isr,process.rss_bytes,replicate.write.average_ms"
        now_ms = machine().wall_ns() / 1e6
        status, whole = await get(n2, f"/admin/history?series={wanted}&bucket_type=default&node=cluster")
        assert status == 200
        status, each = await get(n2, f"/admin/history?series={wanted}&range=hour")
        assert status == 200
        rates = [rate or 0 for rate in whole["cluster"]["series"][TYPED]]
        assert sum(rates) * 2 == pytest.approx(WRITES, rel=0.02)
        assert max(whole["cluster"]["counted"]) == 3
        assert whole["cluster"]["counted"][0] == 0
        assert last(whole["cluster"]["series"]["isr.members"]) == 3
        assert last(whole["cluster"]["series"]["isr.min_isr"]) == 2
        assert (each["step_ms"], each["to_ms"] - each["from_ms"]) == (2000, 3_600_000)
        assert now_ms - 4_000 < each["to_ms"] < now_ms + 4_000
        assert sorted(each["nodes"]) == ["east-1", "east-2", "east-3"]
        for series in each["nodes"].values():
            assert {len(values) for values in series.values()} == {1800}
            assert series["process.rss_bytes"][0] is None
            assert last(series["process.rss_bytes"]) > 1_000_000
        of_nodes = sum(sum(rate or 0 for rate in series[TYPED]) for series in each["nodes"].values())
        assert of_nodes * 2 == pytest.approx(WRITES, rel=0.02)
        names = "apply.write.per_s,apply.per_s,apply.write.max_ms"
        _, answer = await get(n1, f"/admin/history?series={names}&node=cluster")
        by_kind: dict[str, list[float | None]] = answer["cluster"]["series"]
        applied = sum(rate or 0 for rate in by_kind["apply.write.per_s"]) * 2
        assert applied == pytest.approx(3 * WRITES, rel=0.02), "at each of 3 replicas"
        assert sum(rate or 0 for rate in by_kind["apply.per_s"]) * 2 >= applied
        assert last(by_kind["apply.write.max_ms"]) >= 0
        status, day = await get(n1, "/admin/history?series=process.rss_bytes&range=day&node=east-3")
        assert (status, day["step_ms"], list(day["nodes"])) == (200, 60_000, ["east-3"])
        assert len(day["nodes"]["east-3"]["process.rss_bytes"]) == 1440
        for query, refusal, words in (
            ("series=replicate.write.per_sec", 404, 'did you mean "replicate.write.per_s"?'),
            ("series=queue.waiting", 404, "queue.waiting:NAME"),
            ("series=isr.members:default", 404, "no label"),
            ("series=", 400, "1 to 64 series"),
            ("series=isr.members&range=week", 400, "hour, day"),
            ("series=isr.members&node=n9", 404, "no such node"),
            ("series=isr.members&bucket_type=defualt", 404, 'did you mean "default"?'),
        ):
            status, answer = await get(n1, f"/admin/history?{query}")
            assert status == refusal, query
            assert words in answer["error"], query
        listed = (await get(n1, "/admin/history/series"))[1]
        assert "default" in listed["labels"]["bucket_type"]
        assert TYPED in [row["name"] for row in listed["series"]]

    lived(world, claim)


def test_a_node_without_an_answer_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose links do not answer is null in both answers, with the reason; the others are shown."""

    async def claim(nodes: dict[str, Node]) -> None:
        n1, silent = nodes["east-1"], "east-3"
        cut_off(n1, silent, monkeypatch)
        status, answer = await get(n1, "/admin/history?series=process.rss_bytes")
        unknown = {silent: f"not-ready: no connection to {silent}"}
        assert (status, answer["nodes"][silent], answer["unknown"]) == (200, None, unknown)
        assert last(answer["nodes"]["east-2"]["process.rss_bytes"]) > 0
        await samples_more(nodes)
        status, answer = await get(n1, "/admin/history?series=process.rss_bytes&node=cluster")
        assert (max(answer["cluster"]["counted"]), list(answer["unknown"])) == (2, [silent])
        async with viewing(n1) as stream:
            event = await stream.event("sample")
            assert event["nodes"][silent] is None
            assert event["counted"] == 2
            assert "no connection" in event["unknown"][silent]
            assert event["nodes"]["east-2"]["process.rss_bytes"] > 0
            cluster = await stream.event("cluster")
            assert cluster["silent"] == [silent]

    lived(world, claim)


def test_a_stream_has_the_state_at_once_and_a_sample_each_2_s(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are sent on connecting; a sample follows each 2 s, with the series of the requested bucket type; a second
    viewer causes no further requests to the nodes; the state is sent again when it differs."""

    async def claim(nodes: dict[str, Node]) -> None:
        n1 = nodes["east-1"]
        asked: list[Any] = []
        responder = n1.services.query._responders["history-newest"][1]
        respond = responder.respond

        async def counted(request: Any) -> Mapping[Any, float]:
            asked.append(request)
            answer: Mapping[Any, float] = await respond(request)
            return answer

        monkeypatch.setattr(responder, "respond", counted)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with viewing(n1, "?bucket_type=default") as one, viewing(n1) as two:
            first, state = await asyncio.gather(one.event("sample"), two.event("cluster"))
            assert loop.time() - began_s < 1
            assert state["cluster"] == "east"
            assert sorted(first["nodes"]) == ["east-1", "east-2", "east-3"]
            assert first["nodes"]["east-2"]["isr.members"] == 3
            assert (first["counted"], first["cluster"]["isr.members"]) == (3, 3)
            sizes = [each["process.rss_bytes"] for each in first["nodes"].values()]
            assert first["cluster"]["process.rss_bytes"] == sum(sizes)
            times = []
            for _ in range(4):
                times.append((await one.event("sample"))["at_ms"])
                await two.event("sample")
            pauses_ms = [later - earlier for earlier, later in pairwise(times[1:])]
            assert pauses_ms == pytest.approx([2_000, 2_000], abs=50)
            assert len(asked) <= (loop.time() - began_s) / 2 + 2, "one question each 2 s for both viewers"
            assert streams(n1) == 2
            monkeypatch.setattr(n1.services.credentials, "problems", lambda: ["a warning"])
            while (await two.event("cluster"))["warnings"] != ["a warning"]:
                pass  # one that was on its way
        await eventually(lambda: not streams(n1), "both have left")
        assert n1.admin_api.live._rounds is None
        assert (await get(n1, "/admin/live?bucket_type=none"))[0] == 404

    lived(world, claim)


def test_one_stream_too_many_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond listen.live_streams_limit the answer is 503 and names the setting; a place becomes free when a viewer
    leaves."""

    async def claim(nodes: dict[str, Node]) -> None:
        n1 = nodes["east-1"]
        settings = n1.services.settings
        limited = replace(settings, listen=replace(settings.listen, live_streams_limit=2))
        monkeypatch.setattr(n1.services, "settings", limited)
        async with viewing(n1), viewing(n1):
            status, answer = await get(n1, "/admin/live")
            assert (status, answer["reason"]) == (503, "overloaded")
            assert "listen.live_streams_limit" in answer["error"]
        await eventually(lambda: not streams(n1), "both have left")
        async with viewing(n1) as stream:
            await stream.event("sample")

    lived(world, claim)


def test_a_viewer_that_does_not_read_costs_one_event_of_each_kind(
    short_lived_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The viewer's connection buffers fill up, then only the newest event of each kind waits; other viewers are served
    meanwhile; and the node's stop does not wait for it."""
    world = short_lived_world

    def long_event(kind: str, data: bytes) -> bytes:
        return b"event: %b\ndata: %b%b\n\n" % (kind.encode(), data, b" " * 1_000_000)

    monkeypatch.setattr(live, "event_of", long_event)

    async def claim(nodes: dict[str, Node]) -> None:
        n1 = nodes["east-1"]
        _, deaf = await asyncio.open_connection(address(n1), ADMIN_PORT, limit=4_096)
        deaf.write(b"GET /admin/live HTTP/1.1\r\nHost: n\r\n\r\n")
        await eventually(lambda: streams(n1), "the viewer has come")
        (viewer,) = n1.admin_api.live._viewers
        async with viewing(n1) as stream:
            for _ in range(3):
                await stream.event("sample")
            assert viewer._writing
            assert set(viewer._waiting) <= {"cluster", "sample"}
            assert viewer._waiting["sample"] == n1.admin_api.live._samples[""]
        on_its_loop(world, n1, n1.admin_api.stop)
        await eventually(lambda: not streams(n1), "all streams have ended", timeout_s=STALL_TIMEOUT_S / 2)
        deaf.close()

    lived(world, claim)


def test_a_stop_ends_streams_promptly(short_lived_world: World) -> None:
    """Viewers of a node that stops get the end of their stream at once; the stop does not use up its time to drain."""
    world = short_lived_world

    async def claim(nodes: dict[str, Node]) -> None:
        n1 = nodes["east-1"]
        async with viewing(n1) as stream:
            await stream.event("sample")
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            on_its_loop(world, n1, lambda: n1.request_stop("a viewer watches"))
            with pytest.raises(EOFError):
                await stream.event("none such")
            assert loop.time() - began_s < listener.DRAIN_S / 2
            assert not streams(n1)

    lived(world, claim)
