"""Claims about TLS between the nodes of a cluster: which peers are accepted, which are refused and why, and that
nothing stalls."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise
from typing import Any

import pytest
import structlog.testing

from isthmus.node.security import certificates
from isthmus.repl.security import tls_server
from isthmus.repl.security.tls import NodeName
from isthmus.repl.security.tls_server import TlsServer
from tests.support.link_nodes import DEAD_AFTER_MS, LOOPS, MB, Node, entries_of, eventually, forward, run, run_cluster
from tests.support.tls_files import CertificateFolder, filled
from tests.support.waiting import PATIENCE_S


def handshake_failures(node: Node) -> set[str]:
    """Why handshakes failed at a node."""
    samples = node.links.metrics()
    return {labels["reason"] for name, labels, _ in samples if name == "isthmus_tls_refused_total"}


def logged_values(logs: list[Any], event: str, field: str) -> list[str]:
    """Values of one field in all events of a name."""
    return [entry[field] for entry in logs if entry["event"] == event]


@pytest.mark.parametrize("loop", LOOPS)
def test_messages_of_any_size_pass_through_tls(folder: CertificateFolder, loop: str) -> None:
    """Small messages and ones of megabytes arrive both ways, and requests are answered, for longer than a silent
    connection lives."""

    async def scenario() -> None:
        async with run_cluster() as w:
            a, b = await w.node("a", tls=folder.link("a")), await w.node("b", tls=folder.link("b"))
            await w.connect(a, b)
            for seq in range(40):
                size = 2 * MB if seq % 10 == 0 else 1000
                await eventually(lambda size=size: a.links.catch_up_room("b"), "room")  # type: ignore[misc]
                assert a.links.send("b", 0, forward(seq, entries_of(1, size, seq)))
                assert b.links.send("a", 0, forward(seq, entries_of(1, size, seq)))
                assert await a.links.request("b", "echo", b"x" * 1000, 5000) == b"a echo " + b"x" * 1000
            await eventually(lambda: len(a.messages) == len(b.messages) == 40, "all messages")
            await asyncio.sleep(2.2 * DEAD_AFTER_MS / 1000)  # pings and their answers go through, too
            assert a.links.linked("b")
            assert b.links.linked("a")
            assert not a.faults()
            assert set(a.links.certificates_expire_s()) == {"b"}

    run(scenario(), loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("pair", "words", "reason"),
    [
        ("stranger", "is of no authority that we know", "unknown-authority"),
        ("expired", "has expired", "expired"),
        ("a", "must name isthmus://c/b; it names isthmus://c/a", ""),
        ("west-1", "must name isthmus://c/b; it names isthmus://west/west-1", ""),
        ("client", "must name isthmus://c/b; it names nothing", ""),
    ],
)
def test_a_wrong_certificate_is_refused_both_ways(
    folder: CertificateFolder, loop: str, pair: str, words: str, reason: str
) -> None:
    """With a certificate of another authority, an expired one, or one of another node, another cluster or no node,
    neither end accepts the other, and the log gives the reason in words."""

    async def scenario() -> None:
        async with run_cluster() as w:
            a, b = await w.node("a", tls=folder.link("a")), await w.node("b", tls=folder.link(pair))
            with structlog.testing.capture_logs() as logs:
                a.links.set_nodes({"b": b.address})
                await eventually(lambda: words in str(logs), "the reason where a dialled")
                b.links.set_nodes({"a": a.address})
                if reason:
                    await eventually(lambda: reason in handshake_failures(a), "a count where b dialled")
                else:
                    await eventually(lambda: "wrong-certificate" in a.faults(), "a count where b dialled")
            assert not a.links.linked("b")
            assert not b.links.linked("a")
            assert not a.frames

    run(scenario(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_plain_text_and_a_tls_node_refuse_each_other_with_a_reason(folder: CertificateFolder, loop: str) -> None:
    """When a node without TLS and one with it connect, each reports which protocol the other speaks."""

    async def scenario() -> None:
        async with run_cluster() as w:
            a, b = await w.node("a", tls=folder.link("a")), await w.node("b")
            with structlog.testing.capture_logs() as logs:
                a.links.set_nodes({"b": b.address})
                b.links.set_nodes({"a": a.address})
                await eventually(lambda: "plaintext" in handshake_failures(a), "a refuses plain text")
                await eventually(lambda: "tls" in b.faults(), "b sees TLS")
                await eventually(
                    lambda: any(
                        "does it speak TLS?" in each for each in logged_values(logs, "transport.dial.failed", "reason")
                    ),
                    "words where a dialled",
                )
            assert "the other end speaks TLS, which is not turned on here" in logged_values(
                logs, "transport.fault", "sentence"
            )

    run(scenario(), loop)


def test_tls_is_turned_on_node_by_node(folder: CertificateFolder) -> None:
    """Nodes that take both and dial without, that take both and dial with, and that require it, each reach the next."""

    async def scenario(first: dict[str, bool] | None, second: dict[str, bool] | None) -> None:
        async with run_cluster() as w:
            a = await w.node("a", tls=None if first is None else folder.link("a", **first))
            b = await w.node("b", tls=None if second is None else folder.link("b", **second))
            await w.connect(a, b)
            assert await b.links.request("a", "echo", b"x", 5000) == b"b echo x"

    steps = [None, {"take_plain": True, "dial_plain": True}, {"take_plain": True}, {}]
    for before, after in pairwise(steps):
        run(scenario(before, after))


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Any) -> None:
    """After a pair was replaced, also key first, the next connection shows the new one; the existing connection stays
    up."""
    own = filled(tmp_path)

    async def scenario() -> None:
        async with run_cluster() as w:
            a, b = await w.node("a", tls=own.link("a")), await w.node("b", tls=own.link("b"))
            await w.connect(a, b)
            before = a.links.certificates_expire_s()["b"]
            authority = certificates.read_pair(own.authority, own.path / "ca.key")
            renewed = certificates.issue(authority, "b", [NodeName("c", "b")], days=700)
            certificates.write_pair(renewed, own.path / "b.crt", own.path / "b.key")
            assert a.links.linked("b")

            async def shown() -> bool:
                a.links.set_nodes({})
                b.links.set_nodes({})
                await eventually(lambda: not a.links.certificates_expire_s(), "the end of the old connections")
                await asyncio.sleep(0.3)
                await w.connect(a, b)
                return bool(a.links.certificates_expire_s()["b"] > before + 300 * 86_400)

            await eventually(shown, "files are looked at once a second: the new certificate")

    run(scenario())


@pytest.mark.parametrize("loop", LOOPS)
def test_garbage_and_silence_cost_little_and_end(
    folder: CertificateFolder, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown clients that send nothing, half a handshake, or garbage that begins like one: no more than the limit are
    held, silent ones are closed in time, and a valid client still connects meanwhile."""
    monkeypatch.setattr(tls_server, "HANDSHAKES_MAX", 8)
    monkeypatch.setattr(tls_server, "CROWDED_S", 0.1)

    async def scenario() -> None:
        listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        address = listening.getsockname()
        made: list[asyncio.BaseTransport] = []

        class AcceptedConnection(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)

        contexts = folder.link("a").server.current
        server = TlsServer("t", listening, AcceptedConnection, contexts, handshake_timeout_s=1.5)
        server.start()
        held: list[asyncio.StreamWriter] = []
        most = 0
        for number in range(60):
            reader, writer = await asyncio.open_connection(*address)
            del reader
            writer.write([b"", b"\x16\x03\x01", b"\x16" + b"\xff" * 5000, b"GET / HTTP/1.1\r\n\r\n"][number % 4])
            held.append(writer)
            await asyncio.sleep(0.005)
            most = max(most, int(next(value for name, _, value in server.samples() if name.endswith("handshakes"))))
        assert most <= 8
        context = folder.client("b")
        async with asyncio.timeout(PATIENCE_S):
            _, good = await asyncio.open_connection(*address, ssl=context, server_hostname="localhost")
        await eventually(lambda: len(made) == 1, "the right client")
        await eventually(lambda: not any(value for name, _, value in server.samples() if name.endswith("handshakes")))
        assert {"crowded", "plaintext"} <= set(server.refused)
        assert "timeout" in server.refused or server.refused["crowded"] > 5
        for writer in (*held, good):
            writer.transport.abort()
        server.close()
        await server.wait_closed()

    run(scenario(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_handshake_that_stops_half_way_is_ended_in_time(folder: CertificateFolder, loop: str) -> None:
    """A client that sends the beginning of a handshake and then nothing is closed after the time-out, and counted as
    such."""

    async def scenario() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        contexts = folder.link("a").server.current
        server = TlsServer("t", listening, asyncio.Protocol, contexts, handshake_timeout_s=0.2)
        server.start()
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(b"\x16\x03\x01\x02\x00")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        await eventually(lambda: server.refused == {"timeout": 1}, "the count")
        writer.close()
        server.close()
        await server.wait_closed()

    run(scenario(), loop)
