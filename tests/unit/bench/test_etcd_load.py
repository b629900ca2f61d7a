"""The gRPC client of the etcd load, against bytes that etcd 3.4.23 sent and received."""

from __future__ import annotations

import asyncio
import struct

import pytest

from bench.etcd_load import (
    DATA,
    END_STREAM,
    FRAME_HEAD_BYTES,
    GOAWAY,
    INITIAL_WINDOW_SIZE,
    NO_STATUS,
    OK,
    PING,
    PUT,
    RST_STREAM,
    SETTINGS,
    TXN,
    WINDOW_BYTES,
    WINDOW_UPDATE,
    EtcdLoad,
    GrpcCodec,
    Response,
    _frame,
    put_request,
    txn_request,
)
from bench.loadgen import Phase

PUT_SENT = bytes.fromhex(
    "505249202a20485454502f322e300d0a0d0a534d0d0a0d0a000006040000000000000100000000000043010400000001838604142f6574636473"
    "657276657270622e4b562f50757401096c6f63616c686f73740f10106170706c69636174696f6e2f677270630002746508747261696c65727300"
    "0011000100000001000000000c0a036b6579120576616c7565"
)
"""Preface, settings, and the put of "value" at "key"; etcd stored it."""

PUT_RESPONSE = bytes.fromhex(
    "00000c0400000000000005000040000003ffffffff00000004010000000000000408000000000000000011000008060000000000020410100"
    "90e070700001001040000000120880f108b1d75d0620d263d4c4d656400001f000000000001000000001a0a1808cac0e883d08dafa27510ef"
    "a5c883b4959880121802200200001801050000000100889acac8b21234da8f013000899acac8b5254207317f00"
)
"""Settings, their acknowledgement, a window update, a ping, and header, message and trailer of the response."""

PUT_MESSAGE = bytes.fromhex("0a1808cac0e883d08dafa27510efa5c883b49598801218022002")

SETTINGS_AND_PING_ACKNOWLEDGED = bytes.fromhex("00000004010000000000000806010000000002041010090e0707")

EMPTY_KEY_REJECTED = bytes.fromhex(
    "0000040800000000000000000e00000806000000000002041010090e070700003e010500000003880f108b1d75d0620d263d4c4d656400889a"
    "cac8b21234da8f013300899acac8b5254207317f972a49220b6772d9714ea5f4a190a5474a95d87ee690b27f"
)
"""The response to a put with an empty key on the next stream: headers only, with grpc-status 3."""

SERVER_PREFACE = _frame(SETTINGS, 0, 0)


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """(type, flags, stream, content) of each frame."""
    found = []
    while data:
        end = FRAME_HEAD_BYTES + int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[FRAME_HEAD_BYTES:end]))
        data = data[end:]
    return found


def connected() -> GrpcCodec:
    """A codec whose preface is sent."""
    connection = GrpcCodec(b"localhost")
    connection.outgoing()
    return connection


def test_a_put_is_sent_in_the_bytes_that_etcd_took() -> None:
    """Preface, settings, header block and message are those of a put that etcd stored."""
    connection = GrpcCodec(b"localhost")
    assert connection.call(PUT, put_request(b"key", b"value")) == 1
    assert connection.outgoing() == PUT_SENT
    assert connection.outgoing() == b""


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_the_response_of_etcd_is_decoded_from_fragments_of_any_size(size: int) -> None:
    """One response with status 0 and its message; the server's settings and ping are acknowledged."""
    connection = GrpcCodec(b"localhost")
    connection.call(PUT, put_request(b"key", b"value"))
    connection.outgoing()
    parts = [PUT_RESPONSE[at : at + size] for at in range(0, len(PUT_RESPONSE), size)]
    responses = [response for part in parts for response in connection.receive(part)]
    assert responses == [Response(1, OK, PUT_MESSAGE)]
    assert connection.outgoing() == SETTINGS_AND_PING_ACKNOWLEDGED


def test_a_rejected_put_has_its_status() -> None:
    """A response of headers only gives its status, which is not success."""
    connection = connected()
    connection.call(PUT, put_request(b"key", b"value"))
    connection.receive(PUT_RESPONSE)
    assert connection.call(PUT, put_request(b"", b"value")) == 3
    assert connection.receive(EMPTY_KEY_REJECTED) == [Response(3, "3", b"")]


def test_a_response_without_a_status_and_a_reset_stream_are_failures() -> None:
    """They do not count as successes."""
    connection = connected()
    connection.call(PUT, b"x")
    connection.call(PUT, b"y")
    (bare,) = connection.receive(_frame(DATA, END_STREAM, 1, b"\0\0\0\0\0"))
    (reset,) = connection.receive(_frame(RST_STREAM, 0, 3, struct.pack(">I", 7)))
    assert (bare.status, reset.status) == (NO_STATUS, "reset 7")


def test_data_waits_for_both_windows() -> None:
    """A transaction larger than the windows leaves in parts, and only its last frame ends the stream."""
    message = txn_request([(b"%016d" % number, bytes(1_000)) for number in range(100)])
    connection = connected()
    connection.call(TXN, message)
    sent = [frame for frame in frames(connection.outgoing()) if frame[0] == DATA]
    assert sum(len(content) for *_, content in sent) == WINDOW_BYTES
    connection.receive(_frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 20)))
    assert not connection.outgoing(), "the stream's own window is still closed"
    connection.receive(_frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1 << 20)))
    sent += frames(connection.outgoing())
    assert b"".join(content for *_, content in sent)[5:] == message
    assert [flags for _, flags, _, _ in sent] == [0] * (len(sent) - 1) + [END_STREAM]


def test_calls_share_the_window_of_their_connection() -> None:
    """Two calls that fit their own windows wait for the one they have in common, the older call first."""
    connection = connected()
    connection.call(PUT, bytes(40_000))
    connection.call(PUT, bytes(40_000))
    sent = [frame for frame in frames(connection.outgoing()) if frame[0] == DATA]
    assert {stream: sum(len(f[3]) for f in sent if f[2] == stream) for stream in (1, 3)} == {
        1: 40_005,
        3: WINDOW_BYTES - 40_005,
    }


def test_a_setting_of_the_server_moves_open_windows() -> None:
    """A larger initial window applies to the calls under way, too, and not to the connection."""
    connection = connected()
    connection.receive(_frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 20)))
    connection.call(PUT, bytes(100_000))
    connection.outgoing()
    connection.receive(_frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 2 * WINDOW_BYTES)))
    sent = [frame for frame in frames(connection.outgoing()) if frame[0] == DATA]
    assert sum(len(content) for *_, content in sent) == 100_005 - WINDOW_BYTES


def test_the_window_of_the_connection_is_extended() -> None:
    """After half a window of response bytes the client extends it by these bytes."""
    connection = connected()
    connection.call(PUT, b"x")
    for _ in range(40):
        connection.receive(_frame(DATA, 0, 1, bytes(1_000)))
    updates = [int.from_bytes(content, "big") for kind, _, _, content in frames(connection.outgoing()) if kind == 8]
    assert len(updates) == 1
    assert updates[0] > WINDOW_BYTES // 2 - 1_000


@pytest.mark.parametrize("data", [_frame(GOAWAY, 0, 0, bytes(8) + b"too_many_pings"), _frame(9, 0, 1, b"x")])
def test_goaway_and_unsupported_frames_raise(data: bytes) -> None:
    """Both raise ConnectionError, instead of leaving calls without a response."""
    with pytest.raises(ConnectionError, match=r"too_many_pings|frame of type 9"):
        connected().receive(data)


def test_long_fields_have_lengths_of_several_bytes() -> None:
    """The form of protobuf: 1,000 is e8 07; a put within a transaction is framed twice."""
    assert put_request(b"k", bytes(1_000)) == b"\x0a\x01k\x12\xe8\x07" + bytes(1_000)
    assert (
        txn_request([(b"k", b"v"), (b"l", b"w")])
        == b"\x12\x08\x12\x06\x0a\x01k\x12\x01v\x12\x08\x12\x06\x0a\x01l\x12\x01w"
    )


class FakeEtcd:
    """Responds to every call with the recorded response, or with the recorded rejection."""

    def __init__(self) -> None:
        self.connections = 0
        self.reject = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        recorded = EMPTY_KEY_REJECTED if self.reject else PUT_RESPONSE
        recorded_stream = 3 if self.reject else 1
        kept = [frame for frame in frames(recorded) if frame[2] == recorded_stream]
        try:
            await reader.readexactly(24)
            writer.write(SERVER_PREFACE)
            while True:
                head = await reader.readexactly(FRAME_HEAD_BYTES)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                stream = int.from_bytes(head[5:9], "big")
                if head[3] == DATA:
                    grown = struct.pack(">I", 1 << 20)
                    writer.write(_frame(WINDOW_UPDATE, 0, 0, grown) + _frame(WINDOW_UPDATE, 0, stream, grown))
                if head[3] == DATA and head[4] & END_STREAM:
                    writer.write(b"".join(_frame(kind, flags, stream, content) for kind, flags, _, content in kept))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.mark.parametrize(("clients", "connections"), [(1, 10), (4, 3)])
def test_the_load_counts_what_etcd_stored_and_shares_connections(clients: int, connections: int) -> None:
    """Ten clients on connections of their own or four on one write every object; rejections are counted apart."""

    async def main() -> None:
        etcd = FakeEtcd()
        async with await asyncio.start_server(etcd.serve, "127.0.0.1", 0) as listener:
            host, port = listener.sockets[0].getsockname()
            load = EtcdLoad(f"{host}:{port}", str(clients))
            single = await load.run(Phase("put", 0, 200, connections=10))
            assert etcd.connections == connections
            batch = await load.run(Phase("batch", 0, 250, connections=2, batch=100))
            etcd.reject = True
            rejected = await load.run(Phase("put", 0, 20, connections=3))
        assert [(r.objects, r.failed) for r in (single, batch)] == [(200, {}), (250, {})]
        assert (rejected.objects, rejected.failed) == (0, {"grpc-status 3": 20})

    asyncio.run(main())


def test_a_ping_is_acknowledged_once() -> None:
    """A ping gets an acknowledgement; an acknowledgement gets none."""
    connection = connected()
    connection.receive(_frame(PING, 0, 0, b"12345678") + _frame(PING, 1, 0, b"87654321"))
    assert frames(connection.outgoing()) == [(PING, 1, 0, b"12345678")]
