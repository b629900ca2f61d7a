"""The NATS client of the load, against bytes that NATS 2.9.10 sent and received."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench.loadgen import Phase
from bench.nats_load import Message, NatsCodec, NatsLoad, refusal, request

SENT = (
    b'CONNECT {"verbose": false, "pedantic": false, "headers": true, "no_responders": true, "lang": "bench"}\r\n'
    b"SUB _INBOX.t.* 1\r\nPUB $KV.bench.k1 _INBOX.t.0 5\r\nvalue\r\nPUB $KV.other.k1 _INBOX.t.1 5\r\nvalue\r\n"
)
INFO = (
    b'INFO {"server_id":"NBF44FGGETUOBSYFAOD5TC77YMTBIXEQ2M6XKVZSRMEUMD3KC6EU6QWA","server_name":"nats-a2",'
    b'"version":"2.9.10","proto":1,"go":"go1.19.8","host":"127.0.0.1","port":20897,"headers":true,'
    b'"max_payload":1048576,"jetstream":true,"client_id":18,"client_ip":"127.0.0.1","cluster":"a","domain":"a"} \r\n'
)
NO_STREAM = b"HMSG _INBOX.t.1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
STORED = b'MSG _INBOX.t.0 1 44\r\n{"stream":"KV_bench", "domain":"a", "seq":1}\r\n'
REJECTED = (
    b'MSG _INBOX.t.2 1 106\r\n{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},'
    b'"stream":"KV_bench","seq":0}\r\n'
)


def test_messages_are_encoded_in_the_bytes_that_nats_accepted() -> None:
    """Options, one subscription for all responses, and two messages, one of which was stored."""
    connection = NatsCodec(b"_INBOX.t")
    connection.publish(b"$KV.bench.k1", b"_INBOX.t.0", b"value")
    connection.publish(b"$KV.other.k1", b"_INBOX.t.1", b"value")
    assert connection.outgoing() == SENT
    assert connection.outgoing() == b""


@pytest.mark.parametrize("size", [1, 13, 10_000])
def test_responses_are_decoded_from_fragments_of_any_size(size: int) -> None:
    """A stored message, one without a stream, and one that the stream rejected; a PING gets a PONG."""
    data = INFO + NO_STREAM + b"PING\r\n" + STORED + b"+OK\r\n" + REJECTED + b"PONG\r\n"
    connection = NatsCodec(b"_INBOX.t")
    connection.outgoing()
    messages = [found for at in range(0, len(data), size) for found in connection.receive(data[at : at + size])]
    assert [message.subject for message in messages] == [b"_INBOX.t.1", b"_INBOX.t.0", b"_INBOX.t.2"]
    assert [refusal(message) for message in messages] == ["NATS/1.0 503", None, "error 10071"]
    assert connection.outgoing() == b"PONG\r\n"


def test_errors_and_unknown_operations_raise() -> None:
    """Both raise ConnectionError with the text of the server."""
    with pytest.raises(ConnectionError, match="Unknown Protocol Operation"):
        NatsCodec(b"i").receive(b"-ERR 'Unknown Protocol Operation'\r\n")
    with pytest.raises(ConnectionError, match="HTTP"):
        NatsCodec(b"i").receive(b"HTTP/1.1 400 Bad Request\r\n")


@pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b'{"error":{}}'])
def test_only_an_acknowledgement_counts_as_stored(payload: bytes) -> None:
    """Any other payload is a failure."""
    assert refusal(Message(b"i", b"", payload)) is not None


class FakeNats:
    """Acknowledges messages, and rejects every `reject_each`-th."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.connections = 0
        self.reject_each = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(INFO)
        try:
            while line := await reader.readline():
                words = line.split()
                if words[0] == b"PUB":
                    body = await reader.readexactly(int(words[3]) + 2)
                    writer.write(self.response(words[1], words[2], body[:-2]))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def response(self, subject: bytes, reply: bytes, body: bytes) -> bytes:
        payload = b'{"stream":"KV_bench", "seq":%d}' % (len(self.stored) + 1)
        if subject.startswith(b"$JS.API"):
            payload = json.dumps({"subject": subject.decode(), "body": body.decode()}).encode()
        elif self.reject_each and (len(self.stored) + 1) % self.reject_each == 0:
            payload = b'{"error":{"code":400,"err_code":10071}}'
        self.stored.append(subject)
        return b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(payload), payload)


@pytest.mark.parametrize(("clients", "connections"), [(1, 10), (4, 3)])
def test_the_load_counts_what_nats_stored_and_shares_connections(clients: int, connections: int) -> None:
    """Ten clients on connections of their own or four on one write every object; a batch is complete with its last
    response; rejections are counted apart."""

    async def main() -> None:
        nats = FakeNats()
        async with await asyncio.start_server(nats.serve, "127.0.0.1", 0) as listener:
            host, port = listener.sockets[0].getsockname()
            load = NatsLoad(f"{host}:{port}", str(clients))
            single = await load.run(Phase("put", 0, 200, connections=10))
            assert nats.connections == connections
            assert sorted(nats.stored) == [b"$KV.bench.%016d" % number for number in range(200)]
            batch = await load.run(Phase("batch", 200, 250, connections=2, batch=100))
            assert len(set(nats.stored)) == 450
            nats.reject_each = 10
            rejected = await load.run(Phase("batch", 450, 100, connections=1, batch=50))
        assert [(r.objects, r.failed) for r in (single, batch)] == [(200, {}), (250, {})]
        assert (rejected.objects, rejected.failed) == (90, {"error 10071": 10})

    asyncio.run(main())


def test_an_api_request_returns_its_response() -> None:
    """Request and response are JSON; None is an empty request."""

    async def main() -> list[object]:
        nats = FakeNats()
        async with await asyncio.start_server(nats.serve, "127.0.0.1", 0) as listener:
            host, port = listener.sockets[0].getsockname()
            address = f"{host}:{port}"
            return [await asyncio.to_thread(request, address, "$JS.API.INFO", body, 5.0) for body in ({"a": 1}, None)]

    assert asyncio.run(main()) == [
        {"subject": "$JS.API.INFO", "body": '{"a": 1}'},
        {"subject": "$JS.API.INFO", "body": ""},
    ]
