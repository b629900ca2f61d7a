"""Client listeners, for `isthmus kv` and the demo: batches and listings. docs/http.md describes the requests.

Batches are used for single objects too: they accept every byte string as a name and return all siblings at once.
`ObjectClient` is one node; `ClusterClient` sends a request about a key to the key's leader.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgpack

from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.node_listener import ANSWER_TIMEOUT_S, ListenerKind, NoAnswer, NodeListener, reason_of
from isthmus.node.cli.output import printable
from isthmus.repl.http.client import OPEN, PeerCredentials
from isthmus.repl.http.routes import LEADER, PATH, ROUTES_BYTES_MAX, Routes, parse_routes
from isthmus.repl.model.errors import CodecError

HTTP: Final = ListenerKind("--http", "ISTHMUS_HTTP", "http://127.0.0.1:8098")

ANSWER_BYTES_MAX: Final = 128_000_000
"""Largest answer read into memory: more than the largest object with all its siblings at the default limits."""

ROUTES_TIMEOUT_S: Final = 1.0
"""Wait for a connection to a leader, and for each byte of its routes: a node answers them from memory. A leader that is
slower, or that clients cannot reach at the address that it has in the routes, is not used."""

ROUTE_READS_MAX: Final = 2
"""How often one command reads the routes of the node that it was given: at first, and after a leader has failed."""

NO_SUCH_PATH: Final = "unknown-path"
"""The reason that an admin listener gives for a client's request; other servers give none."""


class ObjectClient:
    """The client listener of one node. `url` is http(s)://HOST:PORT; raises CommandFailed (usage) when it is not."""

    def __init__(self, url: str, access: PeerCredentials = OPEN) -> None:
        self._listener = NodeListener(HTTP, url, access)
        self.url = self._listener.url
        self.leader = ""
        """HOST:PORT of the leader that the last answer named; empty for none."""
        self.continuation = ""
        """Token of the page after the listing that was read to its end; empty for none."""

    def close(self) -> None:
        """Close the connections."""
        self._listener.close()

    def batch(self, path: str, items: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """The answers to the items of a batch, in order. Raises CommandFailed, UNAVAILABLE or REFUSED, also when one
        item failed; an absent key is an answer."""
        raw = b"".join(self._pieces("POST", path, msgpack.packb(items)))
        try:
            answers = [
                (int(status), body, reason) for status, body, reason in msgpack.unpackb(raw, strict_map_key=False)
            ]
            if len(answers) != len(items):
                raise ValueError(f"{len(answers)} answers to {len(items)} items")
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            what = "answers a batch in a form that is not this API's; is this a node's client listener?"
            raise self._listener.unavailable(what) from error
        for status, _, reason in answers:
            if status >= 400 and isinstance(reason, str) and reason != "not-found":
                code, _, sentence = reason.partition(": ")
                raise CommandFailed(Exit.REFUSED if status < 500 else Exit.UNAVAILABLE, code, sentence)
        return [list(answer) for answer in answers]

    def names(self, path: str, what: str) -> Iterator[bytes]:
        """The names of a streamed listing. Raises CommandFailed, also in the middle."""
        self.continuation = ""
        decoder = json.JSONDecoder()
        rest = ""
        for piece in self._pieces("GET", path, None):
            rest += piece.decode("ascii", "replace")
            while rest:
                try:
                    document, end = decoder.raw_decode(rest)
                except json.JSONDecodeError:
                    break  # the object continues in the next piece
                rest = rest[end:]
                if isinstance(document, dict) and "error" in document:
                    raise CommandFailed(Exit.UNAVAILABLE, str(document.get("reason")), str(document["error"]))
                if not isinstance(document, dict) or not isinstance(document.get(what), list):
                    raise self._listener.unavailable("answers without a listing; is this a node's client listener?")
                self.continuation = str(document.get("continuation", ""))
                yield from map(unquote_to_bytes, document[what])
        if rest:
            raise self._listener.unavailable("broke off in the middle of the listing")

    def routes(self, timeout_s: float) -> Routes:
        """The routes of the node's cluster. Raises CommandFailed, CodecError."""
        raw = b""
        for piece in self._pieces("GET", PATH, None, timeout_s):
            raw += piece
            if len(raw) > ROUTES_BYTES_MAX:
                raise CodecError(f"routes of more than {ROUTES_BYTES_MAX} bytes")
        return parse_routes(raw)

    def _pieces(
        self, method: str, path: str, body: bytes | None, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> Iterator[bytes]:
        """The body of an answer, refusals raised; a stream as it comes, others up to ANSWER_BYTES_MAX."""
        self.leader = ""
        with self._listener.request(method, path, body, timeout_s=timeout_s) as response:
            status: int = response.status_code
            self.leader = response.headers.get(LEADER, "")
            if status >= 400:
                reason = reason_of(response)
                if reason == NO_SUCH_PATH or (not reason and status < 500):
                    raise self._listener.unavailable(f"answers {status}; is this a node's client listener?")
                text = printable(next(response.iter_content(4096), b"").decode("utf-8", "replace").strip())
                raise self._listener.refused(status, reason, text or f"{self._listener.url} answers {status}")
            yield from self._listener.pieces(response, None if body is None else ANSWER_BYTES_MAX)


class ClusterClient:
    """The cluster of the node at `url`: requests about a key go to its leader, as far as the routes name one that
    answers; all others, and those of clusters without routes, to that node, which forwards them. A token in plain text
    is sent to that node only."""

    def __init__(self, url: str, access: PeerCredentials = OPEN) -> None:
        self._seed = ObjectClient(url, access)
        self._access = access
        self._routes: Routes | None = None
        in_clear = access.token is not None and self._seed.url.startswith("http://")
        self._route_reads = ROUTE_READS_MAX if in_clear else 0
        self._leaders: dict[str, ObjectClient | None] = {}
        """Address -> its client; None for an address that is not used."""

    def close(self) -> None:
        """Close the connections."""
        for client in (self._seed, *self._leaders.values()):
            if client is not None:
                client.close()

    def item(self, path: str, item: tuple[Any, ...], *, reads: bool) -> list[Any]:
        """The answer to a batch of one item, whose first elements are bucket type, bucket and key. Raises as
        `ObjectClient.batch`. With `reads` a leader that fails is replaced by the given node; a write is not repeated,
        since it may have taken effect."""
        bucket_type, bucket, key = item[0].encode(), item[1], item[2]
        client = self._client_of(bucket_type, bucket, key)
        try:
            (answer,) = client.batch(path, [item])
        except CommandFailed as failed:
            if not reads or client is self._seed or failed.exit_code is not Exit.UNAVAILABLE:
                raise
            self._give_up(client)
            client = self._client_of(bucket_type, bucket, key)
            (answer,) = client.batch(path, [item])
        if client.leader and self._routes is not None:
            self._routes.learn(bucket_type, bucket, key, client.leader)
        return answer

    def names(self, path: str, what: str) -> Iterator[bytes]:
        """See ObjectClient.names."""
        return self._seed.names(path, what)

    @property
    def continuation(self) -> str:
        """See ObjectClient."""
        return self._seed.continuation

    def _client_of(self, bucket_type: bytes, bucket: bytes, key: bytes) -> ObjectClient:
        if self._routes is None and self._route_reads < ROUTE_READS_MAX:
            self._route_reads += 1
            try:
                self._routes = self._seed.routes(ANSWER_TIMEOUT_S)
            except NoAnswer:
                raise  # the request would fail, too
            except (CommandFailed, CodecError):  # a node of an older version
                self._route_reads = ROUTE_READS_MAX
        leader = None if self._routes is None else self._routes.leader(bucket_type, bucket, key)
        return self._seed if leader is None else self._at(leader) or self._seed

    def _at(self, address: str) -> ObjectClient | None:
        """The client of the node at `address`; None unless a node of this cluster answers there. The address is right
        in the cluster's network: in the client's, it may be that of another cluster."""
        assert self._routes is not None
        scheme, _, seed = self._seed.url.partition("://")
        if address == seed.rstrip("/"):
            return self._seed
        if address not in self._leaders:
            client: ObjectClient | None = None
            try:
                client = ObjectClient(f"{scheme}://{address}", self._access)
                known = client.routes(ROUTES_TIMEOUT_S).cluster_uuid == self._routes.cluster_uuid
            except (CommandFailed, CodecError):
                known = False
            if client is not None and not known:
                client.close()
            self._leaders[address] = client if known else None
        return self._leaders[address]

    def _give_up(self, client: ObjectClient) -> None:
        """Use a leader no more that has failed, and read the routes again."""
        for address, known in self._leaders.items():
            if known is client:
                self._leaders[address] = None
        client.close()
        self._routes = None
