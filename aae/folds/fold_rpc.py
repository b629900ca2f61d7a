"""Pages of folds from wherever their partitions are led: any node passes a page on to the leader, once.

The bytes of a page's question and answer between nodes are msgpack with a version; towards people the same as JSON,
with names as text where they are UTF-8 (`shown`). How a page is read stands in `aae.folds.folds`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgpack

from isthmus.aae.folds.folds import FOUND_MAX, FoldCursor, FoldKind, FoldMatch, FoldRequest, Folds, FoldScope, Page
from isthmus.repl.model.errors import CodecError, NotReady

METHOD: Final = "aae.fold"

TIMEOUT_MS: Final = 60_000
"""How long a page may take: one that acts waits for room in a queue, or for writes."""

VERSION: Final = 1

NUMBER_MAX: Final = 1 << 63
"""What a node can tell another in msgpack ends here."""

Handler = Callable[[str, bytes], Awaitable[bytes]]


class Folding:
    """Asks the leader of a partition. `leader(partition)` is a node's name, None when there is none."""

    def __init__(
        self,
        folds: Folds,
        *,
        node: str,
        leader: Callable[[int], str | None],
        request: Callable[[str, str, bytes, int], Awaitable[bytes]],
    ) -> None:
        self._folds = folds
        self._node = node
        self._leader = leader
        self._request = request

    def request_handlers(self) -> dict[str, Handler]:
        """What other nodes may ask of this one, by method."""
        return {METHOD: self._answer}

    async def page(self, partition: int, asked: FoldRequest) -> Page:
        """One page of a partition. Raises NotReady when nobody leads it, and what the leader raises."""
        leader = self._leader(partition)
        if leader is None:
            raise NotReady(f"partition {partition} has no leader")
        if leader == self._node:
            return await self._folds.page(partition, asked)
        return decode_page(await self._request(leader, METHOD, encode_asked(partition, asked), TIMEOUT_MS))

    async def _answer(self, _node: str, body: bytes) -> bytes:
        return encode_page(await self._folds.page(*decode_asked(body)))


def encode_asked(partition: int, asked: FoldRequest) -> bytes:
    """A page's question."""
    packed: bytes = msgpack.packb(
        [VERSION, partition, asked.kind.value, asked.scope, asked.place, asked.queue, asked.dry]
    )
    return packed


def decode_asked(data: bytes) -> tuple[int, FoldRequest]:
    """(partition, question). Raises CodecError."""
    match _unpack(data, "a question for a page of a fold"):
        case [int(partition), str(kind), list(scope), [int(segment), bytes(name)], str(queue), bool(dry)]:
            try:
                wanted = FoldScope(*scope)
                segments = wanted.segments
                if segments is not None:
                    first, end = segments
                    wanted = wanted._replace(segments=(int(first), int(end)))
                return partition, FoldRequest(FoldKind(kind), wanted, FoldCursor(segment, name), queue, dry)
            except (TypeError, ValueError) as error:
                raise CodecError(f"not a question for a page of a fold: {error}") from error
    raise CodecError("not a question for a page of a fold")


def encode_page(page: Page) -> bytes:
    """A page."""
    packed: bytes = msgpack.packb(
        [
            VERSION,
            page.next,
            page.scanned,
            page.matched,
            page.found,
            page.done,
            dict(page.refused),
            dict(page.buckets),
            [page.objects, page.tombstones, page.bytes],
            dict(page.sizes),
            dict(page.siblings),
        ]
    )
    return packed


def decode_page(data: bytes) -> Page:
    """A page. Raises CodecError."""
    match _unpack(data, "a page of a fold"):
        case [
            behind,
            int(scanned),
            int(matched),
            list(found),
            int(done),
            dict(refused),
            dict(buckets),
            [int(objects), int(tombstones), int(size)],
            dict(sizes),
            dict(siblings),
        ] if len(found) <= FOUND_MAX:
            try:
                return Page(
                    None if behind is None else FoldCursor(*behind),
                    scanned,
                    matched,
                    [FoldMatch(*one) for one in found],
                    done,
                    Counter(refused),
                    Counter(buckets),
                    objects,
                    tombstones,
                    size,
                    Counter(sizes),
                    Counter(siblings),
                )
            except TypeError as error:
                raise CodecError(f"not a page of a fold: {error}") from error
    raise CodecError("not a page of a fold")


def _unpack(data: bytes, what: str) -> list[Any]:
    try:
        raw = msgpack.unpackb(data, strict_map_key=False, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not {what}: {error}") from error
    if not isinstance(raw, list) or not raw or raw[0] != VERSION:
        raise CodecError(f"not {what}, or of another version: {VERSION} is known")
    return raw[1:]


# -- towards people ---------------------------------------------------------------------------------------------------


def shown(page: Page) -> dict[str, Any]:
    """A page as JSON."""
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
    """A name as text, percent-encoded where it is not UTF-8 that can be shown."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text.isprintable() and "%" not in text:
        return text
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02X}" for byte in name)


def asked_of(wish: Mapping[str, Any]) -> FoldRequest:
    """A page's question from JSON. Raises CodecError that says what would be right."""
    kinds = ", ".join(kind.value for kind in FoldKind)
    try:
        kind = FoldKind(wish.get("kind", ""))
    except ValueError:
        raise CodecError(f"kind {str(wish.get('kind'))[:40]!r} is not known; write one of {kinds}") from None
    raw = wish.get("next") or {"segment": 0, "name": ""}
    try:
        place = FoldCursor(int(raw["segment"]), bytes.fromhex(raw["name"]))
        if not 0 <= place.segment < NUMBER_MAX:
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CodecError("next must be what the page before gave") from None
    queue = wish.get("queue") or ""
    if not isinstance(queue, str) or (kind is FoldKind.REPL_KEYS and not queue):
        raise CodecError("repl-keys needs the name of a queue")
    return FoldRequest(kind, _scope(wish), place, queue, wish.get("dry_run") is not False)


def _scope(wish: Mapping[str, Any]) -> FoldScope:
    names: dict[str, bytes | None] = {}
    for name in ("bucket", "key_from", "key_to"):
        value = wish.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise CodecError(f"{name} must be a text")
        names[name] = None if value is None else unquote_to_bytes(value)
    numbers: dict[str, int | None] = {}
    for name in ("since_ms", "before_ms", "siblings_over", "size_over", "segment_from", "segment_to"):
        value = wish.get(name)
        if value is not None and (type(value) is not int or not 0 <= value < NUMBER_MAX):
            raise CodecError(f"{name} must be a whole number below 2^63")
        numbers[name] = value
    if numbers["before_ms"] == 0:  # which would stand for no bound, and so for everything
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
        if first is not None and end is not None and first >= end:  # nothing would be found, and nothing said of it
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
