"""Load generator for NATS: the PUTs of `bench.loadgen` as messages to a JetStream stream, by the text protocol.

Run as `python -m bench.nats_load HOST:PORT[,HOST:PORT...] [CLIENTS]`. Connections are spread over the addresses, and
CLIENTS clients share a connection (default 1). Phases, results, keys and values are those of `bench.loadgen`. NATS has
no request with many objects: the messages of a batch leave in one write, and the batch ends with the last
acknowledgement.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections import Counter
from typing import Any, Final, NamedTuple, cast

import uvloop

from bench.loadgen import Phase, Result, Runner, serve, value_pool

SUBJECT: Final = b"$KV.bench"
"""Prefix of the objects' subjects, in the form of a key-value bucket."""

OPTIONS: Final = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "bench"}
"""With `no_responders`, a message that no stream stores gets a response too: a header."""

SUBSCRIPTION: Final = b"1"
READ_BYTES: Final = 65_536


class Message(NamedTuple):
    """A message from a server."""

    subject: bytes
    head: bytes
    """Its headers; empty without any."""
    payload: bytes


class NatsCodec:
    """Codec of the client side of a connection: bytes in, bytes out, no socket."""

    def __init__(self, inbox: bytes) -> None:
        self._received = b""
        self._outgoing = [
            b"CONNECT %b\r\n" % json.dumps(OPTIONS).encode(),
            b"SUB %b.* %b\r\n" % (inbox, SUBSCRIPTION),
        ]

    def publish(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        """Send a message; the response goes to subject `reply`."""
        self._outgoing.append(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload))

    def outgoing(self) -> bytes:
        """Return and forget the bytes to send."""
        data, self._outgoing = b"".join(self._outgoing), []
        return data

    def receive(self, data: bytes) -> list[Message]:
        """Decode received bytes and return the complete messages. Raises ConnectionError on an error of the server."""
        received = self._received + data if self._received else data
        messages: list[Message] = []
        at = 0
        while (end := received.find(b"\r\n", at)) >= 0:
            line = received[at:end]
            start = end + 2
            operation = line.partition(b" ")[0]
            if operation in (b"MSG", b"HMSG"):
                words = line.split()
                body_at = start + (int(words[-2]) if operation == b"HMSG" else 0)
                last = start + int(words[-1])
                if len(received) < last + 2:
                    break
                messages.append(Message(words[1], received[start:body_at], received[body_at:last]))
                start = last + 2
            elif operation == b"PING":
                self._outgoing.append(b"PONG\r\n")
            elif operation == b"-ERR":
                raise ConnectionError(f"NATS: {line[5:].decode(errors='replace')}")
            elif operation not in (b"INFO", b"PONG", b"+OK"):
                raise ConnectionError(f"NATS sent {line[:40]!r}, which this client does not support")
            at = start
        self._received = received[at:]
        return messages


def refusal(message: Message) -> str | None:
    """The reason why a stream did not store a message; None for an acknowledgement."""
    if message.head:
        return message.head.decode(errors="replace").strip()
    if message.payload.startswith(b'{"stream":') and b'"seq":' in message.payload:
        return None
    try:
        return f"error {json.loads(message.payload)['error']['err_code']}"
    except (ValueError, KeyError, TypeError):
        return "not an acknowledgement"


def request(address: str, subject: str, payload: Any, timeout_s: float) -> Any:
    """Send a JSON request to the JetStream API and return its JSON response. Raises OSError, TimeoutError included."""
    deadline_s = time.monotonic() + timeout_s
    host, _, port = address.rpartition(":")
    codec = NatsCodec(b"_INBOX.bench")
    body = b"" if payload is None else json.dumps(payload).encode()
    codec.publish(subject.encode(), b"_INBOX.bench.0", body)
    with socket.create_connection((host, int(port)), timeout_s) as sock:
        while True:
            if data := codec.outgoing():
                sock.sendall(data)
            sock.settimeout(max(0.001, deadline_s - time.monotonic()))
            received = sock.recv(READ_BYTES)
            if not received:
                raise ConnectionError(f"NATS at {address} closed the connection")
            for message in codec.receive(received):
                if message.head:
                    raise ConnectionError(f"nothing responds to {subject} at {address}")
                return json.loads(message.payload)


# --- the load ---


class NatsLoad:
    """Load against the nodes of a NATS cluster."""

    def __init__(self, addresses: str, clients: str = "1") -> None:
        self._addresses = addresses.split(",")
        self._clients_a_connection = int(clients)
        self._values = value_pool()

    async def run(self, phase: Phase) -> Result:
        """Run a phase of kind "put" or "batch". Raises ConnectionError when a node closes a connection."""
        assert phase.kind in ("put", "batch"), f"no load of kind {phase.kind} for NATS"
        runner = Runner(phase)
        clients: list[_NatsClient] = []
        connections: list[_Connection] = []
        try:
            while len(clients) < phase.connections:
                address = self._addresses[len(connections) % len(self._addresses)]
                connections.append(await self._connect(runner, address, len(connections)))
                share = min(self._clients_a_connection, phase.connections - len(clients))
                clients += [connections[-1].client(self._values) for _ in range(share)]
            await runner.run(clients)
        finally:
            for connection in connections:
                connection.close()
        return runner.result()

    async def _connect(self, runner: Runner, address: str, number: int) -> _Connection:
        host, _, port = address.rpartition(":")
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(runner, number), host, int(port)
        )
        return connection


class _NatsClient:
    """One client. Its request is one message per object, and is complete with the last response."""

    def __init__(self, connection: _Connection, reply: bytes, values: list[bytes]) -> None:
        self._connection = connection
        self._reply = reply
        self._values = values
        self.failed: Counter[str] = Counter()
        self.pending = 0
        self.numbers: list[int] = []
        self.sent_s = 0.0

    def send(self, numbers: list[int], sent_s: float) -> None:
        self.numbers = numbers
        self.sent_s = sent_s
        self.failed = Counter()
        self.pending = len(numbers)
        for number in numbers:
            value = self._values[number % len(self._values)]
            self._connection.codec.publish(b"%b.%016d" % (SUBJECT, number), self._reply, value)
        self._connection.flush()


class _Connection(asyncio.Protocol):
    """One connection, which one or more clients share."""

    def __init__(self, runner: Runner, number: int) -> None:
        self._runner = runner
        self._inbox = b"_INBOX.bench%d" % number
        self.codec = NatsCodec(self._inbox)
        self._clients: dict[bytes, _NatsClient] = {}
        self._transport: asyncio.Transport | None = None
        self._receiving = False

    def client(self, values: list[bytes]) -> _NatsClient:
        """Add a client to this connection."""
        reply = b"%b.%d" % (self._inbox, len(self._clients))
        client = self._clients[reply] = _NatsClient(self, reply, values)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._runner.on_lost(exc or ConnectionError("NATS closed a connection"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        received_s = time.perf_counter()
        try:
            messages = self.codec.receive(data)
        except ConnectionError as error:
            self._runner.on_lost(error)
            return
        self._receiving = True  # the messages that follow these responses leave in one write
        for message in messages:
            client = self._clients[message.subject]
            if (why := refusal(message)) is not None:
                client.failed[why] += 1
            client.pending -= 1
            if not client.pending:
                self._runner.on_response(client, client.failed, received_s)
        self._receiving = False
        self.flush()

    def flush(self) -> None:
        """Send all published messages, except while responses are handled: that ends with a flush."""
        if self._transport is not None and not self._receiving and (data := self.codec.outgoing()):
            self._transport.write(data)


if __name__ == "__main__":
    uvloop.run(serve(NatsLoad(*sys.argv[1:])))
