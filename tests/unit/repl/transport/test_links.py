"""Connections between a cluster's nodes, over loopback: delivery of messages, and how connections begin and end."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
import structlog.testing

from isthmus.repl.isr.messages import (
    AppendRejected,
    FollowAccepted,
    FollowRejected,
    FollowRejection,
    FollowRequest,
    LeadershipCheck,
    LeadershipCheckOk,
    StaleEpoch,
)
from isthmus.repl.isr.pair_stream import StreamAck, StreamGroup
from isthmus.repl.model.errors import BadInput
from isthmus.repl.telemetry import HELP
from isthmus.repl.transport.connection import PeerConnection
from isthmus.repl.transport.frames import FrameKind
from isthmus.repl.transport.handshake import Handshake, decode_refusal
from tests.support.link_nodes import (
    DEAD_AFTER_MS,
    LOOPS,
    MB,
    UUID,
    RawConnection,
    ack,
    entries_of,
    eventually,
    forward,
    run,
    run_cluster,
)
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.parametrize("loop", LOOPS)


def test_messages_arrive_both_ways_in_one_frame_a_turn(loop: str) -> None:
    """Messages sent in one turn of the loop arrive in order as one frame, with partition, sender and cursors."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair()
            down = [forward(1, entries_of(3, 100)), FollowAccepted(1, 2, 3, 4, 5), LeadershipCheck(1, 9),
                    FollowRejected(1, 2, FollowRejection.REGRESSED, 7)]  # fmt: skip
            up = [
                ack(1),
                FollowRequest(1, 2, 3, 4, 5, ((1, 0), (2, 9))),
                AppendRejected(1, 2, 3, 4),
                LeadershipCheckOk(1, 2, 3),
            ]
            for partition, (leader, follower) in enumerate(zip(down, up, strict=True)):
                assert a.links.send("b", partition, leader, cursors={b"q": b"s"})
                assert b.links.send("a", partition, follower)
            await eventually(lambda: a.frames and b.frames)
            assert [(node, len(frame)) for node, frame in a.frames + b.frames] == [("b", 4), ("a", 4)]
            assert a.messages == up
            assert b.messages == down
            assert [delivery.partition for delivery in b.frames[0][1]] == [0, 1, 2, 3]
            assert [delivery.cursors for delivery in b.frames[0][1]] == [{b"q": b"s"}, {}, {}, {}]

    run(scenario(), loop)


def test_each_kind_of_message_has_its_connection(loop: str) -> None:
    """With only one of the two connections, a follower's messages go over the one that it dialled, a leader's messages
    return over it, and Fenced uses either."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.node("a"), await cluster.node("b")
            b.links.set_nodes({"a": a.address})
            await eventually(lambda: b.links.linked("a") and a.links.catch_up_room("b"))
            assert not a.links.linked("b")
            assert a.events == []
            assert b.events == [("a", True)]
            assert a.links.send("b", 1, forward(1))
            assert not b.links.send("a", 1, forward(1))
            assert b.links.send("a", 1, ack(1))
            assert not a.links.send("b", 1, ack(1))
            assert a.links.send("b", 1, StaleEpoch(2))
            assert b.links.send("a", 1, StaleEpoch(3))
            assert not a.links.send("nobody", 1, StaleEpoch(4))
            await eventually(lambda: len(a.messages) == 2 and len(b.messages) == 2)
            assert a.messages == [ack(1), StaleEpoch(3)]
            assert b.messages == [forward(1), StaleEpoch(2)]

    run(scenario(), loop)


def test_a_node_takes_a_stream_over_each_connection_that_it_dialled(loop: str) -> None:
    """The dialled node is notified of it once for each connection, until that connection breaks; the request is not
    passed to a handler."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.node("a"), await cluster.node("b")
            proxy = await cluster.proxy(a)
            assert not a.links.takes_stream("b")
            b.links.set_nodes({"a": proxy.address})
            await eventually(lambda: a.streams_wanted == ["b"])
            assert a.links.takes_stream("b")
            assert not b.links.takes_stream("a")
            assert b.streams_wanted == []
            group = StreamGroup(9, 1, 0, (), ())
            assert a.links.send("b", 0, group)
            assert b.links.send("a", 0, StreamAck(9, 1, 1, (4,)))
            assert not b.links.send("a", 0, group)
            assert not a.links.send("b", 0, StreamAck(9, 1, 1, ()))
            await eventually(lambda: a.messages and b.messages)
            assert (a.messages, b.messages) == ([StreamAck(9, 1, 1, (4,))], [group])
            proxy.cut()
            await eventually(lambda: ("b", False) in a.events)
            await eventually(lambda: a.streams_wanted == ["b", "b"])
            assert a.links.takes_stream("b")

    run(scenario(), loop)


def test_a_node_of_an_older_version_goes_on_without_streams(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers that it does not know the request: the connection stays, messages flow, and it is sent no stream; nor
    is a node that never asks."""
    monkeypatch.setattr("isthmus.repl.transport.rpc.WANT_STREAM", "of a later version")

    async def scenario() -> None:
        asked: list[str] = []

        async def unknown(_node: str, method: str, _body: bytes) -> bytes:
            asked.append(method)
            raise BadInput(f"no method {method}")

        async with run_cluster() as cluster:
            a, b = await cluster.node("a"), await cluster.node("b")
            a.answer = b.answer = unknown
            with structlog.testing.capture_logs() as logs:
                await cluster.connect(a, b)
                await eventually(lambda: sum(line["event"] == "transport.stream.refused" for line in logs) == 2)
            assert asked == ["pair-stream", "pair-stream"]
            assert (a.streams_wanted, b.streams_wanted) == ([], [])
            assert not a.links.takes_stream("b")
            assert a.links.send("b", 1, forward(1))
            await eventually(lambda: b.messages == [forward(1)])
            assert (a.faults(), b.faults()) == ({}, {})

    run(scenario(), loop)


def test_a_large_object_arrives_whole(loop: str) -> None:
    """A 10 MB entry arrives in either lane, though it is larger than the catch-up lane."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair(catch_up_limit_bytes=MB)
            large = forward(1, entries_of(1, 10 * MB))
            assert a.links.catch_up_room("b") == MB
            assert a.links.send("b", 1, large, live=False)
            assert a.links.catch_up_room("b") == 0
            assert not a.links.send("b", 1, forward(2), live=False)
            assert a.links.send("b", 1, large)
            await eventually(lambda: len(b.messages) == 2, "both copies")
            assert b.messages == [large, large]
            await eventually(lambda: a.links.catch_up_room("b") == MB)

    run(scenario(), loop)


def test_a_message_that_the_other_side_would_not_take_is_not_sent(loop: str) -> None:
    """A message above the limit of the other end is dropped and counted, and the connection stays."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.node("a"), await cluster.node("b", message_limit_bytes=MB)
            await cluster.connect(a, b)
            assert not a.links.send("b", 1, forward(1, entries_of(1, MB)))
            assert a.links.send("b", 1, forward(2, entries_of(1, MB // 2)))
            await eventually(lambda: b.messages)
            assert b.messages[0].seq == 2
            assert a.faults() == {"message-too-large": 1}

    run(scenario(), loop)


def test_a_broken_connection_is_reported_and_dialled_again(loop: str) -> None:
    """Both ends report the break, the dialler reconnects, and messages arrive again."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.node("a"), await cluster.node("b")
            proxy = await cluster.proxy(a)
            b.links.set_nodes({"a": proxy.address})
            for seq in range(3):
                await eventually(lambda seq=seq: b.events.count(("a", True)) == seq + 1 and a.links.catch_up_room("b"))
                assert b.links.send("a", 1, ack(seq))
                await eventually(lambda seq=seq: len(a.messages) == seq + 1)
                proxy.cut()
                await eventually(lambda seq=seq: b.events.count(("a", False)) == seq + 1)
                await eventually(lambda seq=seq: a.events.count(("b", False)) == seq + 1)
            assert set(b.events[::2]) == {("a", True)}
            assert set(a.events) == {("b", False)}

    run(scenario(), loop)


def test_a_node_that_comes_up_late_is_found(loop: str) -> None:
    """Dialling continues while nothing listens, and is logged once, not at each try."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.node("a", dial_delay_max_ms=40), await cluster.node("b")
            await b.links.stop()
            with structlog.testing.capture_logs() as logs:
                a.links.set_nodes({"b": b.address})
                await eventually(lambda: any(entry["event"] == "transport.dial.failed" for entry in logs))
                await asyncio.sleep(0.4)
            assert len([entry for entry in logs if entry["event"] == "transport.dial.failed"]) == 1
            cluster.nodes.remove(b)
            again = await cluster.node("b")
            a.links.set_nodes({"b": again.address})
            await eventually(lambda: a.links.linked("b"))

    run(scenario(), loop)


@pytest.mark.timing
def test_a_dial_that_is_refused_is_reported_at_once(loop: str) -> None:
    """A process that ends closes its sockets: its peer notices and dials again within a fraction of the longest pause,
    and reports each refusal, also for a name with several addresses."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            pause_ms = 3_000
            a, b = await cluster.node("a", dial_delay_max_ms=pause_ms), await cluster.node("b")
            observed = a.observed
            a.links.set_nodes({"b": f"localhost:{b.port}"})
            await eventually(lambda: a.links.linked("b"))
            await asyncio.sleep(pause_ms / 1000)  # a connection that ends sooner is dialled after the usual pause
            cluster.nodes.remove(b)
            assert observed.refused == []
            began_s = time.monotonic()
            await b.links.stop()
            await eventually(lambda: observed.refused)
            assert time.monotonic() - began_s < pause_ms / 1000
            assert observed.links == [("b", True), ("b", False)]
            await eventually(lambda: len(observed.refused) > 1)
            assert {*observed.refused} == {"b"}

    run(scenario(), loop)


def test_a_dial_without_an_answer_is_not_refused(loop: str) -> None:
    """A frozen process, or one behind a network that swallows everything, is not reported (R-SUSPECT)."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.node("a", dial_delay_max_ms=40), await cluster.node("b")
            observed, proxy = a.observed, await cluster.proxy(b)
            a.links.set_nodes({"b": proxy.address})
            await eventually(lambda: a.links.linked("b"))
            proxy.swallows = True
            await eventually(lambda: not a.links.linked("b"))
            await asyncio.sleep(3 * DEAD_AFTER_MS / 1000)
            assert observed.links == [("b", True), ("b", False)]
            assert observed.refused == []

    run(scenario(), loop)


def test_a_node_whose_own_connection_stands_is_not_reported_as_refusing(loop: str) -> None:
    """The node lives: only its address is wrong, or closed to this node."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.node("a", dial_delay_max_ms=40), await cluster.node("b")
            free = socket.socket()
            free.bind(("127.0.0.1", 0))
            observed = a.observed
            b.links.set_nodes({"a": a.address})
            await eventually(lambda: a.links.catch_up_room("b"))
            with structlog.testing.capture_logs() as logs:
                a.links.set_nodes({"b": f"127.0.0.1:{free.getsockname()[1]}"})
                await eventually(lambda: any(entry["event"] == "transport.dial.failed" for entry in logs))
                await asyncio.sleep(0.2)
            assert observed.refused == []
            b.links.set_nodes({})
            await eventually(lambda: observed.refused)
            free.close()

    run(scenario(), loop)


def test_nodes_that_are_gone_are_dropped(loop: str) -> None:
    """A removed node is disconnected and not dialled again; a new address is dialled at once."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair()
            a.links.set_nodes({})
            await eventually(lambda: not a.links.linked("b"))
            assert a.events == [("b", True), ("b", False)]
            assert b.links.linked("a")
            await asyncio.sleep(0.3)
            assert not a.links.linked("b")
            proxy = await cluster.proxy(b)
            a.links.set_nodes({"b": b.address})
            await eventually(lambda: a.links.linked("b"))
            a.links.set_nodes({"b": proxy.address})
            await eventually(lambda: a.events[-1] == ("b", True) and len(a.events) == 5)
            proxy.cut()
            await eventually(lambda: a.events[-1] == ("b", False) or len(a.events) > 5)

    run(scenario(), loop)


def test_a_node_of_another_cluster_or_name_is_refused_with_a_sentence(loop: str) -> None:
    """If an address now belongs to another cluster or node, no connection is made, and the dialler's log has the reason
    that the other side sent."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a = await cluster.node("a")
            other = await cluster.node("x", cluster="other", cluster_uuid=b"o" * 16)
            b = await cluster.node("b")
            with structlog.testing.capture_logs() as logs:
                other.links.set_nodes({"a": a.address})
                b.links.set_nodes({"z": a.address})
                for sentence in (
                    f"node a is of cluster c ({UUID.hex()}), node x of cluster other ({(b'o' * 16).hex()})",
                    "this is node a, node b expects node z",
                ):
                    await eventually(
                        lambda sentence=sentence: any(
                            entry["event"] == "transport.dial.failed" and sentence in entry["reason"] for entry in logs
                        ),
                        sentence,
                    )
            assert set(a.faults()) == {"wrong-cluster", "wrong-node"}
            assert a.events == []
            assert b.events == []
            assert not b.links.linked("z")

    run(scenario(), loop)


def test_a_second_connection_of_a_node_replaces_the_first(loop: str) -> None:
    """The older connection is closed and reported as broken; later messages use the newer one."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a = await cluster.node("a")
            first = await cluster.follower(a)
            second = await cluster.follower(a)
            await first.closed()
            assert a.events == [("f", False)]
            assert a.links.send("f", 1, forward(1))
            assert (await second.frame()).kind is FrameKind.MESSAGES
            assert a.number("isthmus_links", dialled="there") == 1

    run(scenario(), loop)


@pytest.mark.timing
def test_a_peer_that_swallows_everything_is_given_up(loop: str) -> None:
    """Behind a proxy that accepts bytes and forwards none, both ends close the connection and the dialler tries
    again."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.node("a"), await cluster.node("b")
            proxy = await cluster.proxy(a)
            b.links.set_nodes({"a": proxy.address})
            await eventually(lambda: b.links.linked("a") and a.links.catch_up_room("b"))
            await asyncio.sleep(2 * DEAD_AFTER_MS / 1000)
            assert b.links.linked("a"), "a silent connection that answers pings stands"
            await eventually(lambda: b.number("isthmus_link_round_trip_seconds", node="a") < 1)
            proxy.swallows = True
            await eventually(lambda: ("a", False) in b.events)
            await eventually(lambda: ("b", False) in a.events)
            assert b.faults()["silent"] >= 1
            assert a.faults()["silent"] >= 1
            proxy.swallows = False
            await eventually(lambda: b.links.linked("a"))

    run(scenario(), loop)


@pytest.mark.timing
def test_a_pause_of_this_process_kills_no_connection(loop: str) -> None:
    """A process that was paused for longer than the limit of silence, at any moment, keeps its connections."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair(dead_after_ms=200)
            for moment in range(6):
                await asyncio.sleep(0.05 + moment * 0.017)
                time.sleep(0.25)  # noqa: ASYNC251 - the loop is blocked, as after SIGSTOP
            await asyncio.sleep(0.1)
            assert a.events == [("b", True)]
            assert b.events == [("a", True)]
            assert a.faults() == b.faults() == {}

    run(scenario(), loop)


@pytest.mark.timing
def test_pauses_that_follow_each_other_kill_no_connection(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that arrive while the process is paused are read before silence is counted, also if it is paused again
    right after its ping."""
    ticked, pausing = PeerConnection.tick, list[asyncio.Task[None]]()

    async def paused(after_s: float, for_s: float) -> None:
        await asyncio.sleep(after_s)
        time.sleep(for_s)  # noqa: ASYNC251 - the loop is blocked

    def tick(connection: PeerConnection, elapsed_ms: int) -> None:
        silent_ms = connection.silent_ms
        ticked(connection, elapsed_ms)
        if connection.dialled and len(pausing) < 4 and silent_ms and not connection.silent_ms:
            pausing.append(asyncio.create_task(paused(0.12, 0.3)))  # the next tick, which asks, is late,
            pausing.append(asyncio.create_task(paused(0.18, 0.75)))  # and no turn comes between it and this

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair(dead_after_ms=600)
            monkeypatch.setattr(PeerConnection, "tick", tick)
            await eventually(lambda: len(pausing) == 4)
            await asyncio.gather(*pausing)
            await asyncio.sleep(0.3)
            assert a.events == [("b", True)]
            assert b.events == [("a", True)]
            assert a.faults() == b.faults() == {}

    run(scenario(), loop)


def test_a_reader_that_does_not_read_loses_the_connection(loop: str) -> None:
    """Above `live_limit` waiting messages are dropped and the connection closed, so memory stays bounded."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a = await cluster.node("a", live_limit_bytes=2 * MB, dead_after_ms=60_000)
            follower = await cluster.follower(a, receive_buffer_bytes=4096)
            entries = entries_of(1, 100_000)
            sent = 0
            while a.links.send("f", 1, forward(sent, entries)):
                sent += 1
                assert a.number("isthmus_link_waiting_bytes", lane="live") < 3 * MB
                await asyncio.sleep(0)
            assert sent > 20
            assert a.faults() == {"not-reading": 1}
            await eventually(lambda: a.events == [("f", False)])
            assert a.number("isthmus_link_waiting_bytes", lane="live") == 0
            await follower.closed()

    run(scenario(), loop)


def test_pending_handshakes_do_not_block_nodes(loop: str) -> None:
    """Many silent connections are bounded, the oldest is dropped first, and a node can still connect at once."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a = await cluster.node("a", dead_after_ms=60_000)
            raw_connections: list[RawConnection] = [await cluster.raw_connection(a) for _ in range(70)]
            await eventually(lambda: a.faults().get("too-many-strangers", 0) == 6)
            for raw_connection in raw_connections[:6]:
                await raw_connection.closed()
            await cluster.follower(a)
            assert a.number("isthmus_links", dialled="there") == 1

    run(scenario(), loop)


def test_a_refusal_is_one_frame_that_names_its_reason(loop: str) -> None:
    """The other side reads a stable code and a sentence, and then the end of the connection."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a = await cluster.node("a")
            for introduction, reason in (
                (Handshake(b"o" * 16, "other", "x", "a", MB), "wrong-cluster"),
                (Handshake(UUID, "c", "x", "b", MB), "wrong-node"),
                (Handshake(UUID, "c", "a", "a", MB), "wrong-node"),
            ):
                raw_connection = await cluster.raw_connection(a)
                await raw_connection.send_handshake(introduction)
                frame = await raw_connection.frame()
                assert frame.kind is FrameKind.REFUSAL
                assert decode_refusal(frame.body).reason == reason
                await raw_connection.closed()

    run(scenario(), loop)


def test_every_metric_has_a_help_line(loop: str) -> None:
    """All metrics of the links are explained, and count what went by."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair()
            a.links.send("b", 1, forward(1))
            await eventually(lambda: b.messages)
            assert {name for name, _, _ in a.links.metrics()} <= set(HELP)
            assert a.number("isthmus_link_frames_total", lane="live", direction="sent") == 1
            assert b.number("isthmus_link_frames_total", lane="live", direction="received") == 1
            assert b.number("isthmus_link_bytes_total", lane="live", direction="received") > 10

    run(scenario(), loop)


def test_a_dial_that_is_cancelled_as_its_socket_stands_leaves_nothing(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dialled node is removed, or the time is over, in the same turn in which the socket connects: the connection
    is dropped, although the loop reports no end of it, and the node can stop."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.node("a"), await cluster.node("b")
            stands = PeerConnection.connection_made
            dialled: list[PeerConnection] = []

            def cancelled(connection: PeerConnection, transport: asyncio.BaseTransport) -> None:
                stands(connection, transport)
                if connection.dialled:
                    dialled.append(connection)
                    a.links.set_nodes({})

            monkeypatch.setattr(PeerConnection, "connection_made", cancelled)
            a.links.set_nodes({"b": b.address})
            await eventually(lambda: dialled)
            async with asyncio.timeout(PATIENCE_S):
                await a.links.stop()

    run(scenario(), loop)
