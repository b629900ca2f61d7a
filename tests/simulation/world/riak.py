"""A Riak beside the first cluster of a world: both fetch from each other, and the Riak compares both by full-sync.

Its rules are those of `tests.support.riak_model`; here are its HTTP listener, its sink, and its full-sync, as a Riak's
manager does it: roots, branches that differ, keys and clocks of segments that differ, then keys where the cluster is
behind go into the Riak's queue, and keys where the Riak is behind into the cluster's. What it does is judged by
`unequal`: once all is quiet, both have equal clocks and values.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from isthmus.client.steps import Endpoint, Request, Response, Send
from isthmus.repl.model.objects import decode_object
from isthmus.repl.riak.clocks import parse_clock_text
from isthmus.repl.riak.tree_hash import leaf_hash, segment_id
from isthmus.repl.security.accepting import Acceptor, PlainServer
from isthmus.repl.store.rows import split_tail
from tests.simulation.world.node import HTTP_PORT
from tests.simulation.world.node_state import contents_of
from tests.simulation.world.raw_http import RawTransport
from tests.support.riak_model import Bucket, Clock, RiakModel, change_in, descends, term_of

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.machine import VirtualMachine

NAME: Final = "riak"
"""Of the cluster's peer, and of its queue that the Riak fetches."""

THEIR_QUEUE: Final = "isthmus"
"""The Riak's queue that the cluster fetches."""

BUCKET_TYPE: Final = "beside"
"""Of the only bucket that both share; no other client writes to it."""

BUCKET: Final = "b"

ADDRESS: Final = "10.210.0.1"
PORT: Final = 8098

N_VAL: Final = 3

KEYS: Final = tuple(f"k{number}" for number in range(4))

IDLE_S: Final = 0.5
"""Pause of the Riak's sink after an empty answer or an error."""

COMPARE_S: Final = 8.0
"""Pause between two comparisons."""

EMPTY_HOLD_S: Final = 0.032

BRANCH_LEAVES: Final = 256


def settings_of(address: str) -> str:
    """What the file of each node of the cluster has about the Riak."""
    return (
        f'[[queues]]\nname = "{NAME}"\nfilter = "buckettype:{BUCKET_TYPE}"\nriak_fetch = true\nlease = "5s"\n'
        f'[[riak.peers]]\nname = "{NAME}"\nurls = "http://{address}:{PORT}"\nqueue = "{THEIR_QUEUE}"\n'
        f'[[riak.trees]]\nn_val = {N_VAL}\nbucket_types = "{BUCKET_TYPE}"\n'
    )


class WorldRiak:
    """The Riak, on a machine of its own."""

    def __init__(self, machine: VirtualMachine, cluster: WorldCluster) -> None:
        self.machine = machine
        self.cluster = cluster
        self.model = RiakModel(Bucket(), BUCKET_TYPE.encode(), BUCKET.encode())
        self.drops = 0
        """Changes that its sink loses from now on, once it has fetched them."""
        self.pushed = 0
        """Keys that its full-sync has put into the cluster's queue."""
        self._asked = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Serve, fetch and compare from now on."""
        loop = self.machine.loop
        self._tasks = [loop.create_task(each) for each in (self._serve(), self._fetch(), self._compare())]

    def forget_queue(self) -> None:
        """What a restart does: the queue is in memory."""
        self.model.queue.clear()

    # ---------------------------------------------------------------- its listener

    async def _serve(self) -> None:
        listening: Any = self.machine.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.bind((ADDRESS, PORT))
        listening.listen(16)
        listening.setblocking(False)
        PlainServer(Acceptor(NAME, listening, 0), listening, self._protocol).start()

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=self.machine.loop), self._connection)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _ = head.split(" ", 2)
                length = re.search(r"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length else 0)
                status, body = await self._answer(method, target)
                lines = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(lines.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _answer(self, method: str, target: str) -> tuple[int, bytes]:
        path = urlsplit(target).path
        if path == f"/queuename/{THEIR_QUEUE}":
            if method == "POST":  # of no keys: the lengths of the queue, by priority
                return 200, f"Queue {THEIR_QUEUE}: 0 0 {len(self.model.queue)}".encode()
            if not self.model.queue:
                await asyncio.sleep(EMPTY_HOLD_S)
            return 200, self.model.take()
        if path == "/ping":
            return 200, b"OK"
        if path == "/stats":
            return 200, json.dumps({"riak_kv_version": "3.4.0"}).encode()
        return 404, b""

    # ---------------------------------------------------------------- its sink

    async def _fetch(self) -> None:
        """Fetch one change after the other, from one node after the other."""
        transport = self._transport()
        while True:
            body = await self._request(transport, "GET", f"/queuename/{NAME}?object_format=internal")
            found = None if body is None else change_in(body)
            if found is None:
                await asyncio.sleep(IDLE_S)
            elif self.drops:
                self.drops -= 1
            else:
                self.model.push(*found)

    def _transport(self) -> RawTransport:
        return RawTransport(self.machine.loop, self.cluster.credentials, "replicate")

    async def _request(self, transport: RawTransport, method: str, target: str, document: Any = None) -> bytes | None:
        """The body of a node's answer; None if there is none, or not with 200. Another node is asked each time."""
        nodes = list(self.cluster.nodes.values())
        self._asked += 1
        node = nodes[self._asked % len(nodes)]
        body = None if document is None else json.dumps(document).encode()
        headers = () if body is None else ((b"Content-Type", b"application/json"),)
        request = Request(method.encode(), target.encode(), headers, body)
        endpoint = Endpoint(node.scheme, node.machine.address, HTTP_PORT)
        answer = await transport.send(Send(endpoint, request, 10.0, 2.0))
        return answer.body if isinstance(answer, Response) and answer.status == 200 else None

    # ---------------------------------------------------------------- its full-sync

    async def _compare(self) -> None:
        transport = self._transport()
        while True:
            await asyncio.sleep(COMPARE_S)
            await self._compare_once(transport)

    async def _compare_once(self, transport: RawTransport) -> None:
        root = await self._tree(transport, "root", None)
        if root is None:
            return
        theirs, mine = _words(_base64(root["root"])), self._leaves()
        own_root: dict[int, int] = {}
        for leaf, value in mine.items():
            own_root[leaf // BRANCH_LEAVES] = own_root.get(leaf // BRANCH_LEAVES, 0) ^ value
        branches = [at for at, value in enumerate(theirs) if value != own_root.get(at, 0)]
        if not branches:
            return
        answer = await self._tree(transport, "branch", branches)
        if answer is None:
            return
        segments = []
        for branch in answer["branches"]:
            first = branch["branch-id"] * BRANCH_LEAVES
            leaves = enumerate(_words(_base64(branch["branch"])), start=first)
            segments += [leaf for leaf, value in leaves if value != mine.get(leaf, 0)]
        answer = await self._tree(transport, "keysclocks", segments) if segments else None
        if answer is not None:
            await self._repair(transport, answer["keys-clocks"], set(segments))

    async def _repair(self, transport: RawTransport, found: Iterable[Mapping[str, Any]], segments: set[int]) -> None:
        theirs = {row["key"].encode(): _clock(row["clock"]) for row in found}
        behind = []
        for key in sorted(theirs.keys() | self.model.objects.keys()):
            if segment_id(BUCKET_TYPE.encode(), BUCKET.encode(), key) % (1 << 20) not in segments:
                continue
            stored = self.model.objects.get(key)
            mine, clock = {} if stored is None else stored.clock, theirs.get(key, {})
            if descends(clock, mine) and not descends(mine, clock):
                behind.append(
                    {"bucket-type": BUCKET_TYPE, "bucket": BUCKET, "key": key.decode(), "clock": _codes(clock)}
                )
            elif not descends(clock, mine):
                self.model.queue.append(key)
        if behind:
            self.pushed += len(behind)
            await self._request(transport, "POST", f"/queuename/{NAME}", {"keys-clocks": behind})

    async def _tree(self, transport: RawTransport, what: str, chosen: list[int] | None) -> Any:
        target = f"/cachedtrees/nvals/{N_VAL}/{what}"
        if chosen is not None:
            target += f"?filter={quote(base64.b64encode(json.dumps(chosen).encode()).decode(), safe='')}"
        body = await self._request(transport, "GET", target)
        return None if body is None else json.loads(body)

    def _leaves(self) -> dict[int, int]:
        found: dict[int, int] = {}
        place = BUCKET_TYPE.encode(), BUCKET.encode()
        for key, stored in self.model.objects.items():
            leaf = segment_id(*place, key) % (1 << 20)
            clock = tuple((actor, *entry) for actor, entry in sorted(stored.clock.items()))
            found[leaf] = found.get(leaf, 0) ^ leaf_hash(*place, key, clock)
        return found

    # ---------------------------------------------------------------- judgement

    def unequal(self) -> Iterator[str]:
        """The keys that the Riak and the cluster have differently; a key of which one has tombstones only, and the
        other nothing, is equal."""
        rows = contents_of(self.cluster).get(BUCKET_TYPE, {})
        objects = {split_tail(tail)[1]: decode_object(data) for tail, data in rows.items()}
        for key in sorted(objects.keys() | self.model.objects.keys()):
            mine, theirs = objects.get(key), self.model.objects.get(key)
            values = sorted(one.value for one in mine.live) if mine is not None else []
            their_values = theirs.values if theirs is not None else []
            clock = {} if mine is None else {actor: counter for actor, counter, _ in mine.clock}
            their_clock = {} if theirs is None else {actor: counter for actor, (counter, _) in theirs.clock.items()}
            if (values or their_values) and (values != their_values or clock != their_clock):
                yield f"riak: {key.decode()}: {values} here, {their_values} in the Riak"


def _base64(given: str | list[int]) -> bytes:
    return base64.b64decode(given if isinstance(given, str) else bytes(given))


def _words(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4)]


def _clock(given: object) -> Clock:
    return {actor: (counter, time_s) for actor, counter, time_s in parse_clock_text(given)}


def _codes(clock: Clock) -> list[int]:
    """A clock as a Riak's full-sync sends it."""
    deflate = zlib.compressobj(wbits=-15)
    return list(base64.b64encode(deflate.compress(term_of(clock)) + deflate.flush()))
