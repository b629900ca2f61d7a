"""Requests that are answered at once: the same answers as by parser and ASGI, and the same ends."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from binascii import b2a_base64

import pytest

from isthmus.config.settings import Address, LimitSettings, ListenSettings
from isthmus.node.client_api.application import ClientApi, ClientPorts
from isthmus.node.http.application import SMALL_BODY_BYTES
from isthmus.node.http.connection import KEEP_ALIVE_S
from isthmus.node.http.durations import RequestDurations
from isthmus.node.http.fast_connection import PlainAnswer, StartedWrite, read_whole
from isthmus.node.http.listener import Listener
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.repl.model.errors import NotLeader, OutcomeUnknown, Overloaded
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content, encode_object
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.model.vclock import encode_clock
from isthmus.repl.unforeseen import unforeseen
from tests.support.coordinator_cluster import cluster, key_of
from tests.support.memory_client_api import FixedTime
from tests.support.open_access import EVERYBODY
from tests.support.waiting import PATIENCE_S

PUT = b"PUT /buckets/b/keys/%b HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\ncontent-length: %d\r\n\r\n%b"
GET = b"GET /buckets/b/keys/%b HTTP/1.1\r\nhost: x\r\n\r\n"
CLOSE = b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def put(key, value=b"v", *lines, method=b"PUT"):
    """A write with more header lines."""
    head = b"".join(line + b"\r\n" for line in (b"host: x", *lines, b"content-length: %d" % len(value)))
    return method + b" /buckets/b/keys/" + key + b" HTTP/1.1\r\n" + head + b"\r\n" + value


def ask(method, path, *lines):
    """A request without a body."""
    return method + b" " + path + b" HTTP/1.1\r\n" + b"\r\n".join([b"host: x", *lines, b"", b""])


TEXT = b"content-type: text/plain"
SESSION = [
    put(b"1", b"v", TEXT),
    put(b"1", b"sibling", TEXT, b"x-riak-meta-a: b", b"x-riak-index-n_int: 1, 2"),
    ask(b"GET", b"/buckets/b/keys/1"),
    ask(b"GET", b"/types/default/buckets/b/keys/1?isolation=uncommitted"),
    put(b"2", b"v", TEXT, b'link: </buckets/b/keys/1>; riaktag="t"', b"content-encoding: gzip", method=b"POST"),
    ask(b"GET", b"/buckets/b/keys/2"),
    ask(b"HEAD", b"/riak/b/2"),
    ask(b"GET", b"/riak/b/2", b"if-none-match: *"),
    ask(b"GET", b"/riak/b/2", b'if-match: "no"'),
    put(b"2?returnbody=true", b"again", TEXT, b"x-isthmus-request-id: r1"),
    put(b"2?returnbody=true", b"again", TEXT, b"x-isthmus-request-id: r1"),
    put(b"2", b"once", TEXT, b"x-isthmus-request-id: r2"),
    put(b"2", b"once", TEXT, b"x-isthmus-request-id: r2"),
    put(b"2", b"none", TEXT, b"x-riak-vclock: "),
    put(b"3?timeout=5000", b"v", TEXT, b"if-none-match: *"),
    put(b"3", b"v", TEXT, b"if-none-match: *"),
    put(b"%2f+%C3%A9", b"", TEXT),
    ask(b"GET", b"/buckets/b/keys/%2F%20%c3%a9?timeout=5000"),
    ask(b"DELETE", b"/buckets/b/keys/3"),
    ask(b"DELETE", b"/buckets/b/keys/4"),
    ask(b"GET", b"/buckets/b/keys/3"),
    ask(b"GET", b"/buckets/b/keys/absent"),
    put(b"k" * 1024, b"v", TEXT),
    put(b"large", b"x" * 100_000, TEXT),
    ask(b"GET", b"/buckets/b/keys/large"),
    ask(b"HEAD", b"/buckets/b/keys/large"),
    put(b"5", b"v"),
    put(b"5", b"v", b"content-type: none"),
    put(b"5", b"v", TEXT, b"x-riak-vclock: ?"),
    put(b"5", b"v", TEXT, b"x-isthmus-request-id: two words"),
    put(b"5", b"v", TEXT, b"x-riak-index-a: b"),
    put(b"5", b"x" * 200_001, TEXT),
    put(b"%zz", b"v", TEXT),
    put(b"k" * 300, b"v", TEXT),
    ask(b"GET", b"/buckets/b/keys/1?vtag=none"),
    ask(b"GET", b"/buckets/b/keys/1?r=x"),
    ask(b"GET", b"/buckets//keys/1"),
    ask(b"GET", b"/types/none/buckets/b/keys/1"),
    ask(b"GET", b"/types/%zz/buckets/b/keys/1"),
    ask(b"GET", b"/buckets/b/keys/1/"),
    ask(b"GET", b"/buckets/b/props"),
    ask(b"GET", b"/ping"),
    ask(b"GET", b"/nowhere"),
]


def answer_of(sock, head_only):
    """One answer, without its date."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += (got := sock.recv(1 << 16))
        assert got
    head, _, body = raw.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    while length and not head_only and len(body) < int(length[1]):
        body += (got := sock.recv(1 << 16))
        assert got
    return re.sub(rb"date: [^\r]*\r\n", b"", head), body


def converse(server, session, *, split):
    """Send each request in one piece, or in two with a pause; returns the answers. A closed connection is replaced."""
    answers = []
    sock = server.connect()
    try:
        for raw in session:
            if split:
                sock.sendall(raw[:10])
                server.wait(lambda: any(c._in_head for c in server.listener._state.connections))
                sock.sendall(raw[10:])
            else:
                sock.sendall(raw)
            answers.append((raw[:60], *answer_of(sock, raw.startswith(b"HEAD"))))
            if b"connection: close" in answers[-1][1]:
                sock.close()
                server.wait(lambda: not server.listener._state.connections)
                sock = server.connect()
    finally:
        sock.close()
    server.wait(lambda: not server.listener._state.connections)  # the last request is counted by then
    return answers


def timed(client_api):
    """How many requests were timed, by their labels."""
    return {
        (labels["route"], labels["method"], labels["status_class"]): count
        for name, labels, count in client_api.app.durations.samples("http")
        if name.endswith("_count")
    }


def prompted(client_api, monkeypatch):
    """The requests that the client API answered on the fast path."""
    asked, prompt = [], client_api.app.fast_answer

    def noting(request):
        work = prompt(request)
        if work is not None:
            asked.append(request.raw_path)
        return work

    monkeypatch.setattr(client_api.app, "fast_answer", noting)
    return asked


@pytest.mark.parametrize("accept", [b"", b"accept: application/json\r\n"], ids=["any", "json"])
def test_both_paths_answer_alike(client_api_with, serve, monkeypatch, accept):
    """A session of requests, right and wrong, gets the same bytes and the same counts on either path, also when
    refusals are requested in JSON."""
    quick, slow = client_api_with(object_bytes=200_000), client_api_with(object_bytes=200_000)
    asked, none = prompted(quick, monkeypatch), prompted(slow, monkeypatch)
    session = [raw.replace(b"\r\n", b"\r\n" + accept, 1) for raw in SESSION]
    at_once = converse(serve(quick.app), session, split=False)
    by_parser = converse(serve(slow.app), session, split=True)
    assert at_once == by_parser
    refused = [head for _, head, _ in at_once if re.match(rb"HTTP/1.1 [45]", head)]
    assert len(refused) > 15
    assert all((b"content-type: application/json" in head) == bool(accept) for head in refused)
    assert quick.kv.objects == slow.kv.objects
    assert quick.kv.isolations == slow.kv.isolations
    assert quick.app.counts == slow.app.counts
    assert timed(quick) == timed(slow)
    assert sum(timed(quick).values()) == len(session)
    assert quick.app.budget.used_bytes == slow.app.budget.used_bytes == 0
    assert none == []
    assert len(asked) > 25


@pytest.mark.parametrize(
    "failure",
    [NotLeader("elsewhere", "n2"), Overloaded("full"), OutcomeUnknown("lost"), ValueError("a bug")],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.logs_errors("http.bug")
def test_failures_are_answered_alike_on_both_paths(client_api_with, serve, monkeypatch, failure, logged):
    """Refusals of the cluster and bugs are answered, counted and logged alike on both paths; the connection stays
    open."""
    session = [put(b"1", b"v", TEXT), ask(b"GET", b"/buckets/b/keys/1"), ask(b"GET", b"/ping")]
    monkeypatch.setattr(unforeseen._limit, "due", lambda _subject: 0)  # each is logged
    apis = [client_api_with(), client_api_with()]
    for client_api in apis:
        client_api.kv.fail = failure
    asked = prompted(apis[0], monkeypatch)
    answers = [converse(serve(client_api.app), session, split=client_api is apis[1]) for client_api in apis]
    assert answers[0] == answers[1]
    assert len(asked) == 2
    assert apis[0].app.counts == apis[1].app.counts
    assert timed(apis[0]) == timed(apis[1])
    assert apis[0].app.budget.used_bytes == 0
    bugs = [e for e in logged if e["event"] == "http.bug"]
    assert len(bugs) == (4 if isinstance(failure, ValueError) else 0)


@pytest.mark.parametrize(
    ("leader", "room_bytes"), [("n2", 100), ("hidden", 100), ("", 1), ("", 0)], ids=["n2", "hidden", "fits", "full"]
)
def test_writes_that_end_otherwise_are_answered_alike(client_api_with, serve, leader, room_bytes):
    """A write that another node decided, or that finds no memory, gets the same bytes and counts on both ways."""
    apis = [client_api_with(), client_api_with()]
    answers = []
    for client_api in apis:
        client_api.kv.leader = leader
        client_api.app.budget.limit_bytes = room_bytes
        answers.append(converse(serve(client_api.app), [put(b"1", b"v", TEXT)] * 2, split=client_api is apis[1]))
    assert answers[0] == answers[1]
    assert (b"x-isthmus-leader: n2.example:8098" in answers[0][0][1]) == (leader == "n2")
    assert (b"HTTP/1.1 503" in answers[0][0][1]) == (room_bytes == 0)
    assert apis[0].app.counts == apis[1].app.counts
    assert timed(apis[0]) == timed(apis[1])
    assert apis[0].app.budget.used_bytes == 0


async def test_usual_writes_alone_are_started_without_a_coroutine(client_api):
    """A write with a plain path, without a query, needs no coroutine, with a context or a condition, too."""
    context = b2a_base64(encode_clock(((b"x" * 12, 1, 1),)), newline=False)
    usual = [
        put(b"1", b"v", TEXT),
        put(b"1", b"v", TEXT, b"x-riak-vclock: " + context, b"x-riak-meta-a: b"),
        put(b"1", b"v", TEXT, b"if-none-match: *", b"x-isthmus-request-id: r"),
    ]
    others = [put(b"1?w=1", b"v", TEXT), put(b"%31", b"v", TEXT), put(b"1+", b"v", TEXT), put(b"1", b"v")]
    for raw in usual + others:
        work = client_api.app.fast_answer(read_whole(raw, 1000))
        if isinstance(work, StartedWrite):
            await work.results
        else:
            work.close()
        assert isinstance(work, StartedWrite) == (raw in usual), raw


OBJECTS = {
    b"plain": [put(b"plain", b"v", TEXT)],
    b"empty": [put(b"empty", b"", TEXT)],
    b"binary": [put(b"binary", bytes(range(256)), b"content-type: a/b; c=d")],
    b"metadata": [put(b"metadata", b"v", TEXT, b"x-riak-meta-a: b")],
    b"index": [put(b"index", b"v", TEXT, b"x-riak-index-n_int: 1, 2")],
    b"link": [put(b"link", b"v", TEXT, b'link: </buckets/b/keys/1>; riaktag="t"')],
    b"encoding": [put(b"encoding", b"v", TEXT, b"content-encoding: gzip")],
    b"siblings": [put(b"siblings", b"1", TEXT), put(b"siblings", b"2", TEXT)],
    b"deleted": [put(b"deleted", b"v", TEXT), ask(b"DELETE", b"/buckets/b/keys/deleted")],
    b"small": [put(b"small", b"x" * SMALL_BODY_BYTES, TEXT)],
    b"large": [put(b"large", b"x" * (SMALL_BODY_BYTES + 1), TEXT)],
    b"k" * 1024: [put(b"k" * 1024, b"v", TEXT)],
    b"absent": [],
}
FOREIGN = {b"forged": b"a/b\r\nx-forged: yes", b"untyped": b"", b"high": b"text/\xe9"}
"""Keys written by another cluster, with content types that no client of this one could send."""

READS = [
    ask(b"GET", b"/buckets/b/keys/" + key, *lines)
    for key in [*OBJECTS, *FOREIGN]
    for lines in (
        (),
        (b"authorization: Bearer t", b"x-other: 1"),
        (b"accept: application/json",),
        (b"if-none-match: *",),
        (b'if-none-match: "0"',),
        (b'if-match: "0"',),
        (b"if-modified-since: Tue, 14 Nov 2023 22:13:21 GMT",),
        (b"if-unmodified-since: Tue, 14 Nov 2023 22:13:19 GMT",),
    )
] + [
    ask(b"GET", b"/riak/b/plain"),
    ask(b"GET", b"/types/default/buckets/b/keys/plain"),
    ask(b"GET", b"/buckets/b/keys/plain?isolation=uncommitted"),
    ask(b"GET", b"/buckets/b/keys/plain?isolation=none"),
    ask(b"GET", b"/buckets/b/keys/siblings?vtag=none"),
    ask(b"GET", b"/buckets/b/keys/pl%61in"),
    ask(b"HEAD", b"/buckets/b/keys/plain"),
    ask(b"HEAD", b"/buckets/b/keys/absent"),
    ask(b"GET", b"/types/none/buckets/b/keys/plain"),
    ask(b"GET", b"/buckets/b/keys/" + b"k" * 1025),
    ask(b"GET", b"/buckets//keys/plain"),
]


@pytest.mark.parametrize("leader", ["", "n2", "hidden"])
def test_reads_are_answered_alike_at_once_later_and_by_the_parser(client_api_with, serve, leader):
    """A GET of any object, with any headers, gets the same bytes and counts whether its read waits or not, and by the
    parser; from another leader, too."""
    seen = []
    for split, reads_wait in ((False, False), (False, True), (True, False)):
        client_api = client_api_with()
        server = serve(client_api.app)
        converse(server, [request for requests in OBJECTS.values() for request in requests], split=False)
        for key, content_type in FOREIGN.items():
            plain = client_api.kv.object(b"b", b"plain")
            foreign = plain._replace(siblings=(plain.siblings[0]._replace(content_type=content_type),))
            client_api.kv.objects[Key(b"default", b"b", key)] = encode_object(foreign)
        client_api.kv.reads_wait = reads_wait
        client_api.kv.leader = leader
        answers = converse(server, READS, split=split)
        seen.append((answers, dict(client_api.app.counts), client_api.kv.isolations, timed(client_api)))
    assert seen[0] == seen[1] == seen[2]
    statuses = {head[9:12] for _, head, _ in seen[0][0]}
    assert statuses == {b"200", b"300", b"304", b"400", b"404", b"412"}
    assert all((b"x-isthmus-leader: n2" in head) == (leader == "n2") for _, head, _ in seen[0][0] if b" 200 " in head)


async def test_usual_reads_alone_are_answered_without_a_coroutine(client_api):
    """A GET with a plain path, no query and no condition needs no coroutine unless its read waits, and if its object
    has no more than a value and a type, no list of headers."""
    await client_api.kv.write(WriteRequest(Key(b"default", b"b", b"1"), Content(b"v")))
    await client_api.kv.write(WriteRequest(Key(b"default", b"b", b"2"), Content(b"v", metadata=((b"a", b"b"),))))
    plain = [ask(b"GET", b"/buckets/b/keys/1"), ask(b"GET", b"/riak/b/1", b"accept: */*")]
    replies = [ask(b"GET", b"/buckets/b/keys/2"), ask(b"GET", b"/buckets/b/keys/0")]
    others = [
        ask(b"GET", b"/buckets/b/keys/1?r=1"),
        ask(b"GET", b"/buckets/b/keys/%31"),
        ask(b"GET", b"/buckets/b/keys/1", b"if-none-match: *"),
        ask(b"HEAD", b"/buckets/b/keys/1"),
    ]
    for raw in plain + replies + others:
        answer = client_api.app.fast_answer(read_whole(raw, 1000))
        assert isinstance(answer, PlainAnswer) == (raw in plain), raw
        assert isinstance(answer, Reply) == (raw in replies), raw
        if raw in others:
            await answer
    client_api.kv.reads_wait = True
    for raw in plain + replies:
        assert (await client_api.app.fast_answer(read_whole(raw, 1000))).status in (200, 404)


def test_a_read_that_is_answered_at_once_keeps_its_connection(client_api, server):
    """The time for which a silent connection stays open begins with the last answer, however it was made."""
    client_api.put("/buckets/b/keys/1", b"v")
    with server.connect() as sock:
        sock.sendall(GET % b"1")
        answer_of(sock, head_only=False)

        def sweep(since_s):
            (connection,) = server.listener._state.connections
            connection.sweep(asyncio.get_running_loop().time() + since_s)

        server.call(lambda: setattr(next(iter(server.listener._state.connections)), "_since_s", -KEEP_ALIVE_S))
        sock.sendall(GET % b"1")
        answer_of(sock, head_only=False)
        server.call(lambda: sweep(KEEP_ALIVE_S - 1))
        sock.sendall(GET % b"1")
        assert answer_of(sock, head_only=False)[1] == b"v"
        server.call(lambda: sweep(KEEP_ALIVE_S + 1))
        assert sock.recv(1) == b""


def test_a_write_that_outlasts_the_drain_gives_its_body_back(client_api, serve, logged):
    """A listener that stops waits for a started write, then cuts its connection and drops it."""
    server = serve(client_api.app)
    server.call(lambda: setattr(client_api.kv, "gate", asyncio.Event()))
    with server.connect() as sock:
        sock.sendall(PUT % (b"1", 1, b"x"))
        server.wait(lambda: client_api.app.budget.used_bytes == 1)
        asyncio.run_coroutine_threadsafe(server.listener.stop(0.05), server.loop).result(PATIENCE_S)
        assert sock.recv(1) == b""
    server.wait(lambda: client_api.app.budget.used_bytes == 0)
    assert [(e["method"], e["path"]) for e in logged if e["event"] == "http.request_dropped"] == [
        ("PUT", "/buckets/b/keys/1")
    ]
    assert client_api.app.counts == {}


def test_a_half_closed_connection_gets_the_last_answer_alike(client_api_with, serve):
    """A client that sends no more gets the answer to a write under way, which names the end, on both ways."""
    answers = []
    for split in (False, True):
        client_api = client_api_with()
        server = serve(client_api.app)
        server.call(lambda gate=client_api: setattr(gate.kv, "gate", asyncio.Event()))
        with server.connect() as sock:
            raw = put(b"1", b"v", TEXT)
            if split:
                sock.sendall(raw[:10])
                server.wait(lambda at=server: any(c._in_head for c in at.listener._state.connections))
                raw = raw[10:]
            sock.sendall(raw)
            server.wait(lambda api=client_api: api.app.budget.used_bytes == 1)
            sock.shutdown(socket.SHUT_WR)
            server.wait(lambda at=server: not next(iter(at.listener._state.connections)).cycle.keep_alive)
            server.call(client_api.kv.gate.set)
            answers.append(re.sub(rb"date: [^\r]*\r\n", b"", b"".join(iter(lambda at=sock: at.recv(1 << 16), b""))))
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.1 204")
    assert answers[0].endswith(b"connection: close\r\n\r\n")


class RecordingGuard:
    """Admits requests that say please; counts the guarded requests."""

    def __init__(self):
        self.asked = 0

    def check(self, method, raw_path, headers):
        self.asked += 1
        if (b"authorization", b"please") not in headers:
            raise RequestRefused(401, "unauthorized", f"say please before {method} {raw_path.decode()}")


def test_the_guard_is_asked_once_for_each_request(client_api_with, serve):
    """An unauthorized request reads and writes nothing, on either path, and the guard is called once per request."""
    session = [
        put(b"1", b"v", TEXT),
        put(b"1", b"v", TEXT, b"authorization: please"),
        ask(b"GET", b"/buckets/b/keys/1"),
    ]
    apis = [client_api_with(), client_api_with()]
    answers = []
    for client_api in apis:
        client_api.app.guard = RecordingGuard()
        answers.append(converse(serve(client_api.app), session, split=client_api is apis[1]))
        assert (client_api.kv.writes, client_api.kv.isolations, client_api.app.guard.asked) == (1, [], 3)
    assert answers[0] == answers[1]
    assert [head[9:12] for _, head, _ in answers[0]] == [b"401", b"204", b"401"]


def test_a_pipelined_request_waits_for_the_running_one(client_api, server, monkeypatch):
    """Requests that arrive while another is answered on the fast path get their answers after it, in order, in pieces
    or at once."""
    asked = prompted(client_api, monkeypatch)
    server.call(lambda: setattr(client_api.kv, "gate", asyncio.Event()))
    with server.connect() as sock:
        sock.sendall(PUT % (b"1", 1, b"x"))
        server.wait(lambda: client_api.app.budget.used_bytes == 1)
        rest = GET % b"2" + CLOSE
        sock.sendall(GET % b"1" + rest[:20])
        server.wait(lambda: any(c.pipeline for c in server.listener._state.connections))
        sock.sendall(rest[20:])
        server.call(client_api.kv.gate.set)
        raw = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert [int(part[:3]) for part in raw.split(b"HTTP/1.1 ")[1:]] == [204, 200, 404, 200]
    assert asked == [b"/buckets/b/keys/1"]


def test_a_client_that_left_has_written_all_the_same(client_api, server):
    """A write under way is completed without its client, and its body's memory is released."""
    server.call(lambda: setattr(client_api.kv, "gate", asyncio.Event()))
    with server.connect() as sock:
        sock.sendall(PUT % (b"1", 1, b"x"))
        server.wait(lambda: client_api.app.budget.used_bytes == 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.wait(lambda: not server.listener._state.connections)
    server.call(client_api.kv.gate.set)
    server.wait(lambda: client_api.app.budget.used_bytes == 0)
    assert client_api.kv.writes == 1
    assert server.call(lambda: len(server.listener._state.tasks)) == 0


def test_a_large_answer_waits_for_its_reader_and_the_next_request_for_it(client_api, serve):
    """A body of more than one piece is counted and sent as its client reads; meanwhile another request is not
    answered."""
    server = serve(client_api.app)
    client_api.put("/buckets/b/keys/k", b"x" * 20_000_000)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(GET % b"k")
        server.wait(lambda: client_api.app.budget.used_bytes == 20_000_000)
        sock.sendall(CLOSE)
        server.wait(lambda: any(c.pipeline for c in server.listener._state.connections))
        size = 0
        last = b""
        while got := sock.recv(1 << 20):
            size += len(got)
            last = (last + got)[-400:]
        assert size > 20_000_000
        assert last.endswith(b"\r\n\r\nOK")
    server.wait(lambda: client_api.app.budget.used_bytes == 0)


def test_a_request_pipelined_behind_a_large_answer_keeps_its_body_and_order(client_api, server, monkeypatch):
    """A large answer that takes the long way out is not taken for the request that arrives behind it: the rest of that
    one's body reaches it, and nothing is answered before it."""
    reading, get = asyncio.Event(), client_api.kv.get

    async def held(key, isolation=None):
        await reading.wait()
        return await get(key, isolation)

    client_api.put("/buckets/b/keys/large", b"x" * 100_000)
    monkeypatch.setattr(client_api.kv, "get", held)
    client_api.kv.reads_wait = True
    server.call(lambda: setattr(client_api.kv, "gate", asyncio.Event()))
    with server.connect() as sock:
        sock.settimeout(PATIENCE_S)
        sock.sendall(GET % b"large")
        server.wait(lambda: any(c._work is not None for c in server.listener._state.connections))
        write = PUT % (b"behind", 8, b"all of i")
        sock.sendall(write[:-4])
        server.wait(lambda: any(c.pipeline for c in server.listener._state.connections))
        server.call(reading.set)
        assert len(answer_of(sock, head_only=False)[1]) == 100_000
        sock.sendall(write[-4:])
        server.wait(lambda: client_api.app.budget.used_bytes == 8)
        sock.sendall(CLOSE)
        server.wait(lambda: any(c.pipeline for c in server.listener._state.connections))
        server.call(client_api.kv.gate.set)
        raw = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert [int(part[:3]) for part in raw.split(b"HTTP/1.1 ")[1:]] == [204, 200]
    assert client_api.kv.object(b"b", b"behind").siblings[0].value == b"all of i"


def test_a_body_that_waits_for_its_turn_is_not_slow(client_api, server):
    """While a connection is not read because an earlier request is being handled, its client does not get a time-out
    for a slow body."""
    server.call(lambda: setattr(client_api.kv, "gate", asyncio.Event()))
    with server.connect() as sock:
        sock.settimeout(PATIENCE_S)
        sock.sendall(PUT % (b"1", 1, b"x"))
        server.wait(lambda: client_api.app.budget.used_bytes == 1)
        write = PUT % (b"behind", 8, b"all of i")
        sock.sendall(write[:-4])
        server.wait(lambda: any(c.pipeline for c in server.listener._state.connections))

        def sweep():
            state = server.listener._state
            for connection in list(state.connections):
                connection.sweep(asyncio.get_running_loop().time() + state.body_timeout_s + 1)

        server.call(sweep)
        sock.sendall(write[-4:] + CLOSE)
        server.call(client_api.kv.gate.set)
        raw = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert [int(part[:3]) for part in raw.split(b"HTTP/1.1 ")[1:]] == [204, 204, 200]


async def test_requests_wait_without_a_task_for_a_leader_another_node_and_a_confirmation():
    """A request, usual or not, that waits inside the coordinator needs no task of its own: for forwarding, for a
    leader, for the confirmation of a read, and for at most the client's time-out."""

    async with cluster(("n1", "n2", None, "n1")) as c:
        ports = ClientPorts(c.coordinators["n1"], None, None, None, None, None, None, FixedTime())
        app = ClientApi(ports, LimitSettings(), access=EVERYBODY, durations=RequestDurations())
        settings = ListenSettings(http=Address("127.0.0.1", 0))
        listener = Listener("http", settings.http, settings)
        await listener.start(app)
        port = int(listener.url.rsplit(":", 1)[1])

        async def exchange(raw):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(raw)
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head)
                return int(head[9:12]), await reader.readexactly(int(length[1]) if length else 0)
            finally:
                writer.close()

        async def both(partition):
            key = key_of(partition).key
            written = await exchange(put(key, b"v", TEXT))
            return written, await exchange(ask(b"GET", b"/buckets/b/keys/" + key))

        done = (204, b""), (200, b"v")
        assert await both(0) == done
        assert await both(1) == done
        leaderless = asyncio.ensure_future(both(2))
        await asyncio.sleep(0.1)
        assert not leaderless.done()
        c.move(2, "n1")
        assert await leaderless == done
        c.runtimes["n1"].reads = []
        path = b"/buckets/b/keys/" + key_of(0).key
        held = [asyncio.ensure_future(exchange(ask(b"GET", path))) for _ in range(2)]
        while len(c.runtimes["n1"].reads) < 2:
            await asyncio.sleep(0)
        for confirmed in c.runtimes["n1"].reads:
            confirmed.set_result(None)
        assert await asyncio.gather(*held) == [(200, b"v"), (200, b"v")]
        c.runtimes["n1"].hold = True
        assert (await exchange(put(key_of(0).key + b"?timeout=20", b"w", TEXT)))[0] == 504
        c.runtimes["n1"].apply(c.runtimes["n1"].partitions[0])
        await listener.stop(1)
