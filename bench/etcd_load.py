"""Load generator for etcd: the PUTs of `bench.loadgen`, single or one transaction per batch, by gRPC.

Run as `python -m bench.etcd_load HOST:PORT[,HOST:PORT...] [CLIENTS]`. Connections are spread over the addresses, and
CLIENTS clients share a connection (default 1). Phases, results, keys and values are those of `bench.loadgen`. The
module encodes the few HTTP/2 frames of unary calls itself: a client library would use more CPU than the servers under
measurement.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple, cast

import uvloop

from bench.loadgen import Phase, Result, Runner, serve, value_pool

# --- messages of etcd (rpc.proto): PutRequest, and TxnRequest without conditions ---

PUT: Final = b"/etcdserverpb.KV/Put"
TXN: Final = b"/etcdserverpb.KV/Txn"


def put_request(key: bytes, value: bytes) -> bytes:
    """PutRequest: key (1), value (2)."""
    return _field(1, key) + _field(2, value)


def txn_request(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """TxnRequest without conditions: success (2) has a RequestOp with request_put (2) per pair, at most 128."""
    return b"".join(_field(2, _field(2, put_request(key, value))) for key, value in pairs)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    return b"%c%b%b" % (number << 3 | 2, _varint(len(content)), content)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# --- unary gRPC calls over HTTP/2 (RFC 9113), header blocks without a dynamic table (RFC 7541) ---

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
PUSH_PROMISE, CONTINUATION = 5, 9
END_STREAM = ACK = 1
END_HEADERS = 4
PADDED = 8
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE = 1, 4

FRAME_HEAD_BYTES: Final = 9
FRAME_BYTES_MAX: Final = 16_384
"""Largest frame that every HTTP/2 peer accepts."""

WINDOW_BYTES: Final = 65_535
"""Initial flow-control window of a connection and of a stream."""

WINDOW_RENEWED_BYTES: Final = WINDOW_BYTES // 2
"""Response bytes after which the client extends the connection's window. A response has about 40 bytes, so a stream's
window never needs an extension."""

GRPC_STATUS: Final = bytes.fromhex("889acac8b21234da8f")
"""The header name `grpc-status` in Huffman code, with its length byte, as gRPC servers encode it."""

GRPC_HEAD_BYTES: Final = 5
"""Before each message: a compression flag and the length."""

OK: Final = "0"
NO_STATUS: Final = "no grpc-status"


class Response(NamedTuple):
    """The response to one call."""

    stream: int
    status: str
    """The gRPC status code in digits; `OK` for success."""
    message: bytes


class GrpcCodec:
    """Codec of the client side of a connection with unary calls: bytes in, bytes out, no socket."""

    def __init__(self, authority: bytes) -> None:
        self._authority = authority
        self._heads: dict[bytes, bytes] = {}
        self._received = b""
        self._renewable_bytes = 0
        self._next_stream = 1
        self._window = WINDOW_BYTES
        self._stream_window = WINDOW_BYTES
        self._windows: dict[int, int] = {}
        """Send window of the stream of each open call."""
        self._unsent: dict[int, memoryview] = {}
        """Unsent rest of each request that waits for a window, in order of the calls."""
        self._open_calls: dict[int, tuple[bytearray, bytearray]] = {}
        """Received header blocks and body of each open call."""
        self._outgoing = [PREFACE, _frame(SETTINGS, 0, 0, struct.pack(">HI", HEADER_TABLE_SIZE, 0))]

    def call(self, path: bytes, message: bytes) -> int:
        """Start a call and return its stream."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = _request_head(self._authority, path)
        self._outgoing.append(_frame(HEADERS, END_HEADERS, stream, head))
        self._windows[stream] = self._stream_window
        self._open_calls[stream] = bytearray(), bytearray()
        self._unsent[stream] = memoryview(b"\0%b%b" % (struct.pack(">I", len(message)), message))
        self._send_data()
        return stream

    def outgoing(self) -> bytes:
        """Return and forget the bytes to send."""
        data, self._outgoing = b"".join(self._outgoing), []
        return data

    def receive(self, data: bytes) -> list[Response]:
        """Decode received bytes and return the complete responses. Raises ConnectionError on GOAWAY."""
        received = self._received + data if self._received else data
        responses: list[Response] = []
        at = 0
        while len(received) - at >= FRAME_HEAD_BYTES:
            end = at + FRAME_HEAD_BYTES + int.from_bytes(received[at : at + 3], "big")
            if len(received) < end:
                break
            stream = int.from_bytes(received[at + 5 : at + 9], "big") & 0x7FFFFFFF
            self._frame(received[at + 3], received[at + 4], stream, received[at + FRAME_HEAD_BYTES : end], responses)
            at = end
        self._received = received[at:]
        if self._renewable_bytes >= WINDOW_RENEWED_BYTES:
            self._outgoing.append(_frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._renewable_bytes)))
            self._renewable_bytes = 0
        self._send_data()
        return responses

    def _frame(self, kind: int, flags: int, stream: int, content: bytes, responses: list[Response]) -> None:
        if kind in (DATA, HEADERS):
            if kind == DATA:
                self._renewable_bytes += len(content)
            if flags & PADDED or (kind == HEADERS and not flags & END_HEADERS):
                raise ConnectionError("etcd sent a padded or continued frame, which this client does not support")
            call = self._open_calls.get(stream)
            if call is None:
                return
            call[kind == DATA].extend(content)
            if flags & END_STREAM:
                responses.append(self._ended(stream))
        elif kind == SETTINGS and not flags & ACK:
            self._settings(content)
            self._outgoing.append(_frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._outgoing.append(_frame(PING, ACK, 0, content))
        elif kind == WINDOW_UPDATE:
            increment = int.from_bytes(content, "big")
            if not stream:
                self._window += increment
            elif stream in self._windows:
                self._windows[stream] += increment
        elif kind == RST_STREAM and stream in self._open_calls:
            self._ended(stream)
            responses.append(Response(stream, f"reset {int.from_bytes(content, 'big')}", b""))
        elif kind == GOAWAY:
            raise ConnectionError(f"etcd closed the connection: {content[8:].decode(errors='replace')}")
        elif kind in (PUSH_PROMISE, CONTINUATION):
            raise ConnectionError(f"etcd sent a frame of type {kind}, which this client does not support")

    def _settings(self, content: bytes) -> None:
        for number, value in struct.iter_unpack(">HI", content):
            if number == INITIAL_WINDOW_SIZE:
                for stream in self._windows:
                    self._windows[stream] += value - self._stream_window
                self._stream_window = value

    def _ended(self, stream: int) -> Response:
        head, body = self._open_calls.pop(stream)
        self._windows.pop(stream, None)
        self._unsent.pop(stream, None)
        return Response(stream, _status(bytes(head)), bytes(body[GRPC_HEAD_BYTES:]))

    def _send_data(self) -> None:
        """Send as many bytes as the windows allow, oldest call first."""
        for stream, rest in list(self._unsent.items()):
            while rest and (size := min(len(rest), FRAME_BYTES_MAX, self._window, self._windows[stream])) > 0:
                last = END_STREAM if size == len(rest) else 0
                self._outgoing.append(_frame(DATA, last, stream, rest[:size]))
                rest = rest[size:]
                self._window -= size
                self._windows[stream] -= size
            if rest:
                self._unsent[stream] = rest
            else:
                del self._unsent[stream]
            if self._window <= 0:
                return


def _frame(kind: int, flags: int, stream: int, content: bytes | memoryview = b"") -> bytes:
    return b"".join((struct.pack(">I", len(content))[1:], bytes((kind, flags)), struct.pack(">I", stream), content))


def _request_head(authority: bytes, path: bytes) -> bytes:
    """The header block of a call: indexed fields, and literals without indexing."""
    method_post, scheme_http = b"\x83", b"\x86"
    return b"".join(
        (
            method_post,
            scheme_http,
            b"\x04" + _literal(path),
            b"\x01" + _literal(authority),
            b"\x0f\x10" + _literal(b"application/grpc"),
            b"\x00" + _literal(b"te") + _literal(b"trailers"),
        )
    )


def _literal(text: bytes) -> bytes:
    """A string literal of a header block without Huffman code; at most 126 bytes, so that its length has one byte."""
    assert len(text) < 0x7F
    return b"%c%b" % (len(text), text)


def _status(head: bytes) -> str:
    """The value of grpc-status in the header blocks of a response. Digits are not Huffman-coded: that saves nothing."""
    at = head.find(GRPC_STATUS)
    if at < 0:
        return NO_STATUS
    start = at + len(GRPC_STATUS) + 1
    return head[start : start + head[start - 1]].decode(errors="replace")


# --- the load ---


class EtcdLoad:
    """Load against the nodes of an etcd cluster."""

    def __init__(self, addresses: str, clients: str = "1") -> None:
        self._addresses = addresses.split(",")
        self._clients_a_connection = int(clients)
        self._values = value_pool()

    async def run(self, phase: Phase) -> Result:
        """Run a phase of kind "put" or "batch". Raises ConnectionError when a node closes a connection."""
        runner = Runner(phase)
        clients: list[_EtcdClient] = []
        connections: list[_Connection] = []
        try:
            while len(clients) < phase.connections:
                address = self._addresses[len(connections) % len(self._addresses)]
                connections.append(await self._connect(runner, address))
                share = min(self._clients_a_connection, phase.connections - len(clients))
                clients += [_EtcdClient(self, connections[-1], phase) for _ in range(share)]
            await runner.run(clients)
        finally:
            for connection in connections:
                connection.close()
        return runner.result()

    async def _connect(self, runner: Runner, address: str) -> _Connection:
        host, _, port = address.rpartition(":")
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(runner, address), host, int(port)
        )
        return connection

    def request(self, phase: Phase, numbers: list[int]) -> tuple[bytes, bytes]:
        """Path and message of the call that writes these keys."""
        pairs = [(b"%016d" % number, self._values[number % len(self._values)]) for number in numbers]
        if phase.kind == "batch":
            return TXN, txn_request(pairs)
        assert phase.kind == "put", f"no load of kind {phase.kind} for etcd"
        return PUT, put_request(*pairs[0])


class _EtcdClient:
    """One client, with at most one call in progress."""

    def __init__(self, load: EtcdLoad, connection: _Connection, phase: Phase) -> None:
        self._load = load
        self._connection = connection
        self._phase = phase
        self.numbers: list[int] = []
        self.sent_s = 0.0

    def send(self, numbers: list[int], sent_s: float) -> None:
        self.numbers = numbers
        self.sent_s = sent_s
        self._connection.call(self, *self._load.request(self._phase, numbers))


class _Connection(asyncio.Protocol):
    """One connection, which one or more clients share."""

    def __init__(self, runner: Runner, address: str) -> None:
        self._runner = runner
        self._codec = GrpcCodec(address.encode())
        self._clients: dict[int, _EtcdClient] = {}
        self._transport: asyncio.Transport | None = None
        self._receiving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._runner.on_lost(exc or ConnectionError("etcd closed a connection"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def call(self, client: _EtcdClient, path: bytes, message: bytes) -> None:
        self._clients[self._codec.call(path, message)] = client
        if not self._receiving:
            self._flush()

    def data_received(self, data: bytes) -> None:
        received_s = time.perf_counter()
        try:
            responses = self._codec.receive(data)
        except ConnectionError as error:
            self._runner.on_lost(error)
            return
        self._receiving = True  # the calls that follow these responses leave in one write
        for response in responses:
            client = self._clients.pop(response.stream)
            failed = Counter({} if response.status == OK else {f"grpc-status {response.status}": len(client.numbers)})
            self._runner.on_response(client, failed, received_s)
        self._receiving = False
        self._flush()

    def _flush(self) -> None:
        assert self._transport is not None
        if data := self._codec.outgoing():
            self._transport.write(data)


if __name__ == "__main__":
    uvloop.run(serve(EtcdLoad(*sys.argv[1:])))
