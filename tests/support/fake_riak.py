"""A Riak for tests: a queue, objects, bucket properties, and the HTTP requests that Isthmus sends to one.

One node, in a thread, with the bytes of `repl.riak`. A test puts objects and raw answers into the queue, and can make
the next answers fail (`faults`): "drop" closes without an answer after the change is taken, "cut" sends half of it,
"crc" damages a byte, "slow" answers after `slow_s`, "huge" declares 2^40 bytes, digits are that status without taking
a change; None answers normally.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key
from isthmus.repl.model.objects import Object
from isthmus.repl.riak.clocks import clock_text
from isthmus.repl.riak.queue_answers import EMPTY_QUEUE, encode_queue_answer

JSON = "application/json"


class FakeRiak:
    """A Riak with one node. `queue` is its queue's name; `user` and `password`: what a client must send, "" for
    nothing."""

    def __init__(self, queue: str = "isthmus", *, user: str = "", password: str = "") -> None:
        self.queue_name = queue
        self.user, self.password = user, password
        self.version = "3.4.0"
        self.has_folds = True
        """Whether it has queues and folds, as from 2.9.1 on."""
        self.waiting: deque[bytes] = deque()
        """Answers, in the order in which they are given."""
        self.objects: dict[Key, Object] = {}
        self.props: dict[bytes, dict[str, Any]] = {DEFAULT_BUCKET_TYPE: {"allow_mult": False, "dvv_enabled": False}}
        """Bucket type -> its properties."""
        self.nodes: list[tuple[str, int]] = []
        """Live nodes besides this one."""
        self.faults: deque[str | None] = deque()
        self.slow_s = 0.5
        self.seen: Counter[str] = Counter()
        """How often each path without its query was requested."""
        self.taken = 0
        """Changes that were given out, also those whose answer was lost."""
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # ---------------------------------------------------------------- what a test does

    def put(self, key: Key, stored: Object, *, queued: bool = True) -> None:
        """Store an object and, if `queued`, put it into the queue."""
        self.objects[key] = stored
        if queued:
            self.offer(key)

    def offer(self, key: Key) -> None:
        """Put a key into the queue."""
        self.waiting.append(encode_queue_answer(*key, self.objects[key], hashes=False))

    def offer_raw(self, answer: bytes) -> None:
        """Put an answer into the queue."""
        self.waiting.append(answer)

    # ---------------------------------------------------------------- requests

    def pop(self, fault: str | None) -> bytes:
        """The queue's next answer, as `fault` has it."""
        with self._lock:
            if not self.waiting:
                return EMPTY_QUEUE
            self.taken += 1
            answer = self.waiting.popleft()
        return answer[:-1] + bytes([answer[-1] ^ 1]) if fault == "crc" else answer

    def fold(self, what: str, bucket_type: bytes, bucket: bytes, found: dict[str, Any]) -> dict[str, Any]:
        """The answer of a fold over a bucket."""
        keys = [key for key in self.objects if key[:2] == (bucket_type, bucket) and _in_range(key, self, found)]
        if what == "rangerepl":
            for key in keys:
                self.offer(key)
            return {"dispatched_count": len(keys)}
        if what == "objectstats":
            return {"total_count": len(keys), "total_size": 100 * len(keys), "sizes": {}, "siblings": {}}
        return {
            "keys-clocks": [
                {
                    **_place(bucket_type, bucket),
                    "key": key.key.decode(),
                    "clock": [ord(c) for c in clock_text(self.objects[key].clock)],
                }
                for key in keys
            ]
        }

    def buckets(self) -> list[tuple[bytes, bytes]]:
        """Bucket types and buckets with keys."""
        return sorted({key[:2] for key in self.objects})


def _place(bucket_type: bytes, bucket: bytes) -> dict[str, Any]:
    """A bucket as Riak's JSON names it."""
    typed = {} if bucket_type == DEFAULT_BUCKET_TYPE else {"bucket-type": bucket_type.decode()}
    return {**typed, "bucket": bucket.decode()}


def _in_range(key: Key, riak: FakeRiak, found: dict[str, Any]) -> bool:
    keys, dates = found.get("key_range"), found.get("date_range")
    modified_s = max(sibling.last_modified_ms for sibling in riak.objects[key].siblings) // 1000
    if keys is not None and not keys["start"].encode() <= key.key <= keys["end"].encode():
        return False
    return dates is None or dates["start"] <= modified_s <= dates["end"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are part of the game."""


def _handler(riak: FakeRiak) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._request("GET")

        def do_HEAD(self) -> None:
            self._request("HEAD")

        def do_POST(self) -> None:
            self._request("POST")

        def _request(self, method: str) -> None:
            parts = urlsplit(self.path)
            self.segments = [unquote_to_bytes(part) for part in parts.path.split("/")[1:]]
            self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            riak.seen[parts.path] += 1
            wanted = base64.b64encode(f"{riak.user}:{riak.password}".encode()).decode()
            if riak.user and self.headers.get("Authorization") != f"Basic {wanted}":
                self._answer(401, "text/html", b"<h1>Unauthorized</h1>")
                return
            kind = self.segments[0].decode()
            answer: Callable[[], None] | None = getattr(self, f"_{method.lower()}_{kind}", None)
            if answer is None or (not riak.has_folds and kind not in ("stats", "buckets", "types", "ping")):
                self._answer(404, "text/plain", b"not found\n")
            else:
                answer()

        # -------------------------------------------------------- queue

        def _get_queuename(self) -> None:
            fault = riak.faults.popleft() if riak.faults else None
            if fault is not None and fault.isdigit():
                self._answer(int(fault), "text/plain", b"no")
                return
            if self.segments[1].decode() != riak.queue_name:
                self._answer(200, "application/octet-stream", EMPTY_QUEUE)
                return
            answer = riak.pop(fault)
            if fault == "slow":
                time.sleep(riak.slow_s)
            if fault in ("drop", "cut", "huge"):
                self.close_connection = True
            if fault == "drop":
                return
            length = 1 << 40 if fault == "huge" else len(answer)
            sent = answer[: len(answer) // 2] if fault == "cut" else answer
            self._answer(200, "application/octet-stream", sent, length=length)

        def _post_queuename(self) -> None:
            name = self.segments[1].decode()
            if name != riak.queue_name:
                self._answer(200, "text/plain", f"No queue {name}".encode())
                return
            for one in json.loads(self.body)["keys-clocks"]:
                riak.offer(Key(one.get("bucket-type", "default").encode(), one["bucket"].encode(), one["key"].encode()))
            self._answer(200, "text/plain", f"Queue {name}: {len(riak.waiting)} 0 0".encode())

        # -------------------------------------------------------- folds and properties

        def _get_stats(self) -> None:
            self._json({"riak_kv_version": riak.version, "ring_members": ["riak@127.0.0.1"]})

        def _get_membership_request(self) -> None:
            here = urlsplit(riak.url)
            every = [(here.hostname, here.port), *riak.nodes]
            self._json({"up_nodes": [{"ip": ip, "port": str(port)} for ip, port in every]})

        def _get_aaebucketlist(self) -> None:
            found = [
                {"bucket": b.decode()}
                if t == DEFAULT_BUCKET_TYPE
                else {"bucket-type": t.decode(), "bucket": b.decode()}
                for t, b in riak.buckets()
            ]
            self._json({"results": found})

        def _get_rangerepl(self) -> None:
            self._fold()

        def _get_rangetrees(self) -> None:
            self._fold()

        def _get_objectstats(self) -> None:
            self._fold()

        def _fold(self) -> None:
            bucket_type, bucket, _ = self._place(1)
            found = json.loads(base64.b64decode(self.query["filter"]))
            try:
                self._json(riak.fold(self.segments[0].decode(), bucket_type, bucket, found))
            except UnicodeDecodeError:
                self._answer(500, "text/plain", b"cannot encode")

        def _get_types(self) -> None:
            if self.segments[1] not in riak.props:
                self._answer(404, "text/plain", b"no such type\n")
            elif self.segments[2:] == [b"props"]:
                self._json({"props": riak.props[self.segments[1]]})
            else:
                self._get_buckets()

        def _get_buckets(self) -> None:
            bucket_type, bucket, rest = self._place(0)
            if not rest and "buckets" in self.query:
                self._json({"buckets": [b.decode() for t, b in riak.buckets() if t == bucket_type]})
            elif rest == [b"props"]:
                self._json({"props": riak.props[bucket_type]})
            elif rest == [b"keys"]:
                keys = [key.key for key in riak.objects if key[:2] == (bucket_type, bucket)]
                pieces = [json.dumps({"keys": [k.decode() for k in keys[n : n + 2]]}) for n in range(0, len(keys), 2)]
                self._answer(200, JSON, "".join(pieces).encode())
            elif rest[:1] == [b"keys"]:
                self._object(Key(bucket_type, bucket, rest[1]))
            else:
                self._answer(404, "text/plain", b"not found\n")

        def _object(self, key: Key) -> None:
            stored = riak.objects.get(key)
            if stored is None:
                self._answer(404, "text/plain", b"not found\n")
                return
            clock = [("X-Riak-Vclock", clock_text(stored.clock))]
            if stored.deleted:
                self._answer(404, "text/plain", b"not found\n", more=[*clock, ("X-Riak-Deleted", "true")])
            elif len(stored.siblings) > 1:
                parts = b"".join(b"\r\n--x1\r\nContent-Type: text/plain\r\n\r\n" + s.value for s in stored.siblings)
                self._answer(300, "multipart/mixed; boundary=x1", parts + b"\r\n--x1--\r\n", more=clock)
            else:
                (one,) = stored.siblings
                modified = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(one.last_modified_ms // 1000))
                headers = [*clock, ("Last-Modified", modified), ("ETag", f'"{one.vtag}"')]
                headers += [(f"X-Riak-Meta-{name.decode()}", value.decode()) for name, value in one.shown_metadata]
                headers += [(f"X-Riak-Index-{name.decode()}", value.decode()) for name, value in one.indexes]
                self._answer(200, one.content_type.decode() or "application/octet-stream", one.value, more=headers)

        # -------------------------------------------------------- answers

        def _place(self, at: int) -> tuple[bytes, bytes, list[bytes]]:
            """Bucket type, bucket, and what follows, of a path from segment `at` on."""
            rest = self.segments[at:]
            bucket_type = DEFAULT_BUCKET_TYPE
            if rest[0] == b"types":
                bucket_type, rest = rest[1], rest[2:]
            return bucket_type, rest[1] if len(rest) > 1 else b"", rest[2:]

        def _json(self, found: Any) -> None:
            self._answer(200, JSON, json.dumps(found).encode())

        def _answer(self, status: int, kind: str, body: bytes, *, length: int | None = None, more: Any = ()) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            for name, value in more:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    return Handler
