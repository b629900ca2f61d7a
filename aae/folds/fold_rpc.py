"""Route fold pages to the leaders of their partitions; the page's formats between nodes and in the admin API.

Between nodes requests and pages are msgpack lists with a version. In JSON names are text where they are UTF-8, and
percent-encoded otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import unquote_to_bytes

import msgspec

from isthmus.aae.folds.folds import (
    FOUND_MAX,
    ROWS_MAX,
    FoldCursor,
    FoldKind,
    FoldMatch,
    FoldRequest,
    Folds,
    FoldScope,
    Page,
    RiakTreeShape,
)
from isthmus.aae.ports import Leaders, NodeRpc, RpcHandler
from isthmus.repl.model.errors import CodecError, NotReady

METHOD: Final = "aae.fold"

TIMEOUT_MS: Final = 15_000
"""Time-out of a page of another node: an act waits for capacity of a queue (5 s), or for writes. Below what the command
line waits, so that the sentence reaches it."""

VERSION: Final = 1

SEGMENT_BITS_MAX: Final = 32
"""Bits of a Riak's segments; its largest trees have 22."""

_Word = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]

NUMBER_MAX: Final = 1 << 63
"""Upper bound of integers in msgpack between nodes."""


class FoldRouter:
    """Reads pages from the leaders of partitions."""

    def __init__(
        self,
        folds: Folds,
        *,
        node: str,
        leaders: Leaders,
        rpc: NodeRpc,
    ) -> None:
        self._folds = folds
        self._node = node
        self._leaders = leaders
        self._rpc = rpc

    def request_handlers(self) -> dict[str, RpcHandler]:
        """Handlers of requests from other nodes, by method."""
        return {METHOD: self._serve_page}

    async def page(self, partition: int, request: FoldRequest) -> Page:
        """One page of a partition. Raises NotReady without a leader, and the leader's errors."""
        leader = self._leaders.leader(partition)
        if leader is None:
            raise NotReady(f"partition {partition} has no leader")
        if leader == self._node:
            return await self._folds.page(partition, request)
        return decode_page(await self._rpc.request(leader, METHOD, encode_request(partition, request), TIMEOUT_MS))

    async def _serve_page(self, _node: str, body: bytes) -> bytes:
        return encode_page(await self._folds.page(*decode_request(body)))


class _Request(msgspec.Struct, array_like=True, frozen=True):
    """VERSION, partition, and the fields of a FoldRequest."""

    version: Literal[1]
    partition: int
    kind: FoldKind
    scope: FoldScope
    cursor: FoldCursor
    queue: str
    dry: bool
    tree: RiakTreeShape | None = None


class _Page(msgspec.Struct, array_like=True, frozen=True):
    """VERSION, and the fields of a Page in its order; objects, tombstones and bytes are one tuple."""

    version: Literal[1]
    next: FoldCursor | None
    scanned: int
    matched: int
    found: Annotated[list[FoldMatch], msgspec.Meta(max_length=FOUND_MAX)]
    done: int
    refused: dict[str, int]
    buckets: dict[bytes, int]
    totals: tuple[int, int, int]
    sizes: dict[int, int]
    siblings: dict[int, int]
    leaves: Annotated[dict[_Word, _Word], msgspec.Meta(max_length=ROWS_MAX)] = {}


_decode_request = msgspec.msgpack.Decoder(_Request).decode
_decode_page = msgspec.msgpack.Decoder(_Page).decode


_REQUEST_OF_VERSION_1: Final = 5
_SCOPE_OF_VERSION_1: Final = 8
_MATCH_OF_VERSION_1: Final = 6
"""Fields of a FoldRequest, a FoldScope and a FoldMatch that every version knows. Those behind them, and the leaves of a
page, are sent only where they are set, which happens only for kinds and scopes that earlier versions refuse anyway."""


def encode_request(partition: int, request: FoldRequest) -> bytes:
    scope = request.scope
    known = scope if scope.riak_segments is not None else scope[:_SCOPE_OF_VERSION_1]
    fields = request if request.tree is not None else request[:_REQUEST_OF_VERSION_1]
    return msgspec.msgpack.encode((VERSION, partition, request.kind, known, *fields[2:]))


def decode_request(data: bytes) -> tuple[int, FoldRequest]:
    """(partition, request). Raises CodecError."""
    try:
        found = _decode_request(data)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a request for a page of a fold, version {VERSION}: {error}") from error
    for tree in (found.scope.riak_segments, found.tree):
        if tree is not None and not 0 <= tree.bits <= SEGMENT_BITS_MAX:
            raise CodecError(f"segments of a tree of 2^{tree.bits} leaves")
    if (found.kind is FoldKind.RIAK_TREE) != (found.tree is not None):
        raise CodecError(f"a fold {found.kind} with a tree of {found.tree}")
    return found.partition, FoldRequest(found.kind, found.scope, found.cursor, found.queue, found.dry, found.tree)


def encode_page(page: Page) -> bytes:
    totals = (page.objects, page.tombstones, page.bytes)
    counters = (dict(page.refused), dict(page.buckets), totals, dict(page.sizes), dict(page.siblings))
    found = [one if one.clock else one[:_MATCH_OF_VERSION_1] for one in page.found]
    known = (VERSION, page.next, page.scanned, page.matched, found, page.done, *counters)
    return msgspec.msgpack.encode((*known, page.leaves) if page.leaves else known)


def decode_page(data: bytes) -> Page:
    """Raises CodecError."""
    try:
        page = _decode_page(data)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a page of a fold, version {VERSION}: {error}") from error
    counters = (Counter(page.refused), Counter(page.buckets), *page.totals, Counter(page.sizes), Counter(page.siblings))
    return Page(page.next, page.scanned, page.matched, page.found, page.done, *counters, page.leaves)


# -- JSON of the admin API --------------------------------------------------------------------------------------------


def page_document(page: Page) -> dict[str, Any]:
    """A page as a JSON document."""
    return {
        "next": None if page.next is None else {"segment": page.next.segment, "name": page.next.name.hex()},
        "scanned": page.scanned,
        "matched": page.matched,
        "found": [
            {
                "bucket": text_of(one.bucket),
                "key": text_of(one.key),
                "siblings": one.siblings,
                "size_bytes": one.size_bytes,
                "modified_ms": one.modified_ms,
                "note": one.note,
            }
            for one in page.found
        ],
        "done": page.done,
        "refused": dict(page.refused),
        "buckets": {text_of(bucket): count for bucket, count in page.buckets.items()},
        "objects": page.objects,
        "tombstones": page.tombstones,
        "bytes": page.bytes,
        "sizes": {str(bits): count for bits, count in sorted(page.sizes.items())},
        "siblings": {str(number): count for number, count in sorted(page.siblings.items())},
    }


def text_of(name: bytes) -> str:
    """A name as text; percent-encoded unless it is printable UTF-8 without "%"."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text.isprintable() and "%" not in text:
        return text
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02X}" for byte in name)


def parse_fold_request(body: Mapping[str, Any]) -> FoldRequest:
    """A request from a JSON document. Raises CodecError with the correct form."""
    kinds = ", ".join(kind.value for kind in FoldKind)
    try:
        kind = FoldKind(body.get("kind", ""))
    except ValueError:
        raise CodecError(f"kind {str(body.get('kind'))[:40]!r} is not known; write one of {kinds}") from None
    if kind is FoldKind.RIAK_TREE:
        raise CodecError(f"{kind} is for Riaks alone, which ask for it by GET /rangetrees")
    raw = body.get("next") or {"segment": 0, "name": ""}
    try:
        cursor = FoldCursor(int(raw["segment"]), bytes.fromhex(raw["name"]))
        if not 0 <= cursor.segment < NUMBER_MAX:
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CodecError("next must be what the page before gave") from None
    queue = body.get("queue") or ""
    if not isinstance(queue, str) or (kind is FoldKind.REPL_KEYS and not queue):
        raise CodecError("repl-keys needs the name of a queue")
    return FoldRequest(kind, _scope(body), cursor, queue, body.get("dry_run") is not False)


def _scope(body: Mapping[str, Any]) -> FoldScope:
    names: dict[str, bytes | None] = {}
    for name in ("bucket", "key_from", "key_to"):
        value = body.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise CodecError(f"{name} must be a text")
        names[name] = None if value is None else unquote_to_bytes(value)
    numbers: dict[str, int | None] = {}
    for name in ("since_ms", "before_ms", "siblings_over", "size_over", "segment_from", "segment_to"):
        value = body.get(name)
        if value is not None and (type(value) is not int or not 0 <= value < NUMBER_MAX):
            raise CodecError(f"{name} must be a whole number below 2^63")
        numbers[name] = value
    if numbers["before_ms"] == 0:  # 0 means no bound on the wire
        raise CodecError("before_ms must be above 0: nothing is older; without it there is no bound")
    segments = None
    if numbers["segment_from"] is not None or numbers["segment_to"] is not None:
        segments = (numbers["segment_from"] or 0, 1 << 20 if numbers["segment_to"] is None else numbers["segment_to"])
    if (names["key_from"] or names["key_to"]) and names["bucket"] is None:
        raise CodecError("a range of keys needs a bucket")
    ranges: dict[str, tuple[Any, Any]] = {
        "key_to": (names["key_from"], names["key_to"]),
        "segment_to": segments or (None, None),
        "before_ms": (numbers["since_ms"], numbers["before_ms"]),
    }
    for name, (first, end) in ranges.items():
        if first is not None and end is not None and first >= end:
            raise CodecError(f"{name} must be above where the range begins: nothing lies between")
    return FoldScope(
        names["bucket"],
        names["key_from"],
        names["key_to"],
        segments,
        numbers["since_ms"] or 0,
        numbers["before_ms"] or 0,
        numbers["siblings_over"],
        numbers["size_over"],
    )
