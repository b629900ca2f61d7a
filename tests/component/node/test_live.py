"""History and live events of three nodes, through their admin listeners, and the cost of viewers."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from isthmus.node.admin_api import live
from isthmus.node.http import listener
from isthmus.node.http.connection import STALL_TIMEOUT_S
from isthmus.node.services.history_series import ALL_TYPES, ISR_BASE
from isthmus.repl.model.errors import NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest
from tests.support.ensemble_nodes import NodeOfEnsemble, three_nodes
from tests.support.waiting import PATIENCE_S, eventually

TYPED: Final = "replicate.write.per_s"


def address(node: NodeOfEnsemble) -> tuple[str, int]:
    host, _, port = node.services.admin_url.removeprefix("http://").rpartition(":")
    return host, int(port)


def cut_off(node: NodeOfEnsemble, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the links of a node give no answer of another one."""
    request = node.services.links.request

    async def cut(name: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        if name == other:
            raise NotReady(f"no connection to {other}")
        return await request(name, method, body, timeout_ms)

    monkeypatch.setattr(node.services.links, "request", cut)


async def get(node: NodeOfEnsemble, path: str) -> tuple[int, Any]:
    """The status and the JSON of a GET, read to the end of the connection."""
    reader, writer = await asyncio.open_connection(*address(node))
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if b"transfer-encoding: chunked" in head.lower():
        body = unchunked(body)
    return int(head.split()[1]), json.loads(body)


def unchunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return found


class EventStream:
    """A viewer that reads: its events, as a browser's EventSource would see them."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._text = b""

    async def event(self, kind: str) -> Any:
        """The JSON of the next event of a kind; others before it are skipped. Raises EOFError at the end."""
        async with asyncio.timeout(PATIENCE_S):
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
async def viewing(node: NodeOfEnsemble, query: str = "") -> AsyncIterator[EventStream]:
    """A stream of a node that is read."""
    reader, writer = await asyncio.open_connection(*address(node))
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


def taken(node: NodeOfEnsemble) -> float:
    """How many samples the history of a node has taken."""
    samples = {name: count for name, _, count in node.services.history_sampler.samples()}
    return samples["isthmus_history_samples_total"]


async def sampled(nodes: Mapping[str, NodeOfEnsemble]) -> None:
    """Return once the history of each node has a place that is over, and the newest sample a partition that the node
    leads with all three members: a node that is ready may lead none yet."""

    def leads(node: NodeOfEnsemble) -> bool:
        return node.services.history.newest.get(("isr.worst", ALL_TYPES), 0) % ISR_BASE == 3

    await eventually(lambda: all(taken(node) > 2 and leads(node) for node in nodes.values()), "a sample of each node")


async def write_some(node: NodeOfEnsemble, count: int) -> None:
    for n in range(count):
        await node.services.coordinator.write(WriteRequest(Key(b"default", b"b", b"%d" % n), Content(b"v")))


def streams(node: NodeOfEnsemble) -> float:
    ((_, _, count),) = node.admin_api.live.samples()
    return count


async def test_any_node_shows_the_history_of_all(tmp_path: Path) -> None:
    """Writes through one node are in the history of the leaders, merged over the cluster and by bucket type; all nodes
    have the same time slots, those before the start are unknown, and wrong queries are refused with a valid form."""
    async with three_nodes(tmp_path) as nodes:
        n1, n2 = nodes["n1"], nodes["n2"]
        await sampled(nodes)
        await write_some(n1, 60)
        wanted = f"{TYPED},isr.members,isr.min_isr,process.rss_bytes,replicate.write.average_ms"

        async def written() -> tuple[dict[str, Any], dict[str, Any]]:
            asked = await get(n2, f"/admin/history?series={wanted}&bucket_type=default&node=cluster")
            each = await get(n2, f"/admin/history?series={wanted}&range=hour")
            assert asked[0] == each[0] == 200
            return asked[1], each[1]

        writes = 60
        while True:
            before = {node.settings.node.name: taken(node) for node in nodes.values()}
            await eventually(lambda was=before: all(taken(node) > was[name] + 1 for name, node in nodes.items()))  # type: ignore[misc]
            asked_ms = time.time() * 1000
            whole, each = await written()
            rates = [rate or 0 for rate in whole["cluster"]["series"][TYPED]]
            # A place is of 2 s, and of more where a busy machine takes its sample late, which makes its rate lower.
            if sum(rates) * 2 > 0.8 * writes or writes == 600:
                break
            await write_some(n1, 60)
            writes += 60
        assert sum(rates) * 2 == pytest.approx(writes, rel=0.2)
        assert max(whole["cluster"]["counted"]) == 3
        assert whole["cluster"]["counted"][0] == 0
        assert last(whole["cluster"]["series"]["isr.members"]) == 3
        assert last(whole["cluster"]["series"]["isr.min_isr"]) == 2
        assert (each["step_ms"], each["to_ms"] - each["from_ms"]) == (2000, 3_600_000)
        assert asked_ms - 10_000 < each["to_ms"] < time.time() * 1000 + 10_000
        assert sorted(each["nodes"]) == ["n1", "n2", "n3"]
        for series in each["nodes"].values():
            assert {len(values) for values in series.values()} == {1800}
            assert series["process.rss_bytes"][0] is None
            assert last(series["process.rss_bytes"]) > 1_000_000
        assert sum(sum(rate or 0 for rate in n[TYPED]) for n in each["nodes"].values()) * 2 == pytest.approx(
            writes, rel=0.2
        )
        names = "apply.write.per_s,apply.per_s,apply.write.max_ms"

        async def all_applied() -> dict[str, list[float | None]] | None:
            _, answer = await get(n1, f"/admin/history?series={names}&node=cluster")
            found: dict[str, list[float | None]] = answer["cluster"]["series"]
            enough = sum(rate or 0 for rate in found["apply.write.per_s"]) * 2 > 0.8 * 3 * writes
            return found if enough else None

        by_kind = await eventually(all_applied, "followers apply later, and a sample later")
        applied = sum(rate or 0 for rate in by_kind["apply.write.per_s"]) * 2
        assert applied == pytest.approx(3 * writes, rel=0.2), "at each of 3 replicas"
        assert sum(rate or 0 for rate in by_kind["apply.per_s"]) * 2 >= applied
        assert last(by_kind["apply.write.max_ms"]) >= 0
        status, day = await get(n1, "/admin/history?series=process.rss_bytes&range=day&node=n3")
        assert (status, day["step_ms"], list(day["nodes"]), len(day["nodes"]["n3"]["process.rss_bytes"])) == (
            200, 60_000, ["n3"], 1440,
        )  # fmt: skip
        for query, status, words in (
            ("series=replicate.write.per_sec", 404, 'did you mean "replicate.write.per_s"?'),
            ("series=queue.waiting", 404, "queue.waiting:NAME"),
            ("series=isr.members:default", 404, "no label"),
            ("series=", 400, "1 to 64 series"),
            ("series=isr.members&range=week", 400, "hour, day"),
            ("series=isr.members&node=n9", 404, "no such node"),
            ("series=isr.members&bucket_type=defualt", 404, 'did you mean "default"?'),
        ):
            answer = await get(n1, f"/admin/history?{query}")
            assert answer[0] == status, query
            assert words in answer[1]["error"], query
        listed = (await get(n1, "/admin/history/series"))[1]
        assert "default" in listed["labels"]["bucket_type"]
        assert TYPED in [row["name"] for row in listed["series"]]


async def test_a_node_without_an_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose links do not answer is null in both answers, with the reason; the others are shown."""
    async with three_nodes(tmp_path) as nodes:
        n1 = nodes["n1"]
        await sampled(nodes)
        cut_off(n1, "n3", monkeypatch)
        status, answer = await get(n1, "/admin/history?series=process.rss_bytes")
        assert (status, answer["nodes"]["n3"], answer["unknown"]) == (
            200,
            None,
            {"n3": "not-ready: no connection to n3"},
        )
        assert last(answer["nodes"]["n2"]["process.rss_bytes"]) > 0
        status, answer = await get(n1, "/admin/history?series=process.rss_bytes&node=cluster")
        assert (max(answer["cluster"]["counted"]), list(answer["unknown"])) == (2, ["n3"])
        async with viewing(n1) as stream:
            event = await stream.event("sample")
            assert event["nodes"]["n3"] is None
            assert event["counted"] == 2
            assert "no connection" in event["unknown"]["n3"]
            assert event["nodes"]["n2"]["process.rss_bytes"] > 0
            cluster = await stream.event("cluster")
            assert cluster["silent"] == ["n3"]


async def test_a_stream_has_the_state_at_once_and_a_sample_each_2_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are sent on connecting; samples follow at most every 2 s, with the series of the requested bucket type; a
    second viewer causes no further requests to the nodes; the state is sent again when it differs."""
    async with three_nodes(tmp_path) as nodes:
        n1 = nodes["n1"]
        await sampled(nodes)
        asked: list[Any] = []
        respond = n1.services.query._responders["history-newest"][1].respond

        async def counted(request: Any) -> Mapping[Any, float]:
            asked.append(request)
            answer: Mapping[Any, float] = await respond(request)
            return answer

        n1.services.query._responders["history-newest"][1].respond = counted  # type: ignore[method-assign]
        monkeypatch.setattr(live, "TIMEOUT_MS", 30_000)  # every node is in every sample
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with viewing(n1, "?bucket_type=default") as one, viewing(n1) as two:
            first, state = await asyncio.gather(one.event("sample"), two.event("cluster"))
            assert state["cluster"] == "east"
            assert sorted(first["nodes"]) == ["n1", "n2", "n3"]
            assert first["nodes"]["n2"]["isr.members"] == 3
            assert (first["counted"], first["cluster"]["isr.members"]) == (3, 3)
            assert first["cluster"]["process.rss_bytes"] == sum(
                each["process.rss_bytes"] for each in first["nodes"].values()
            )
            times = []
            for _ in range(3):
                times.append((await one.event("sample"))["at_ms"])
                await two.event("sample")
            pauses_ms = [later - earlier for earlier, later in pairwise(times)]
            assert min(pauses_ms) > 900, "after a late round the next one comes in time"
            assert min(pauses_ms) < 4_000
            assert len(asked) <= (loop.time() - began_s) / 2 + 2, "one question each 2 s for both viewers"
            assert streams(n1) == 2
            monkeypatch.setattr(n1.services.credentials, "problems", lambda: ["a warning"])
            while (await two.event("cluster"))["warnings"] != ["a warning"]:
                pass  # one that was on its way
        await eventually(lambda: not streams(n1), "both have left")
        assert n1.admin_api.live._rounds is None
        assert (await get(n1, "/admin/live?bucket_type=none"))[0] == 404


async def test_one_stream_too_many_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond listen.live_streams_limit the answer is 503 and names the setting; a place becomes free when a viewer
    leaves."""
    async with three_nodes(tmp_path) as nodes:
        n1 = nodes["n1"]
        settings = n1.services.settings
        monkeypatch.setattr(
            n1.services, "settings", replace(settings, listen=replace(settings.listen, live_streams_limit=2))
        )
        async with viewing(n1), viewing(n1):
            status, answer = await get(n1, "/admin/live")
            assert (status, answer["reason"]) == (503, "overloaded")
            assert "listen.live_streams_limit" in answer["error"]
        await eventually(lambda: not streams(n1), "both have left")
        async with viewing(n1) as stream:
            await stream.event("sample")


async def test_a_viewer_that_does_not_read_costs_one_event_of_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The viewer's connection buffers fill up, then only the newest event of each kind waits; other viewers are served
    meanwhile; and the node's stop does not wait for it."""
    monkeypatch.setattr(live, "event_of", lambda kind, data: b"event: %b\ndata: %b%b\n\n" % (
        kind.encode(), data, b" " * 3_000_000))  # fmt: skip
    async with three_nodes(tmp_path) as nodes:
        n1 = nodes["n1"]
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(deaf, address(n1))
        try:
            await loop.sock_sendall(deaf, b"GET /admin/live HTTP/1.1\r\nHost: n\r\n\r\n")
            await eventually(lambda: streams(n1), "the viewer has come")
            (viewer,) = n1.admin_api.live._viewers
            async with viewing(n1) as stream:
                for _ in range(3):
                    await stream.event("sample")
                assert viewer._writing
                assert set(viewer._waiting) <= {"cluster", "sample"}
                assert viewer._waiting["sample"] == n1.admin_api.live._samples[""]
            n1.admin_api.stop()
            await eventually(lambda: not streams(n1), "all streams have ended", timeout_s=STALL_TIMEOUT_S / 2)
        finally:
            deaf.close()


async def test_a_stop_ends_streams_promptly(tmp_path: Path) -> None:
    """Viewers of a node that stops get the end of their stream at once; the stop does not use up its time to drain."""
    async with three_nodes(tmp_path) as nodes:
        n1 = nodes["n1"]
        async with viewing(n1) as stream:
            await stream.event("sample")
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            n1.request_stop("a viewer watches")
            with pytest.raises(EOFError):
                await stream.event("none such")
            assert loop.time() - began_s < listener.DRAIN_S / 2
            assert not streams(n1)
