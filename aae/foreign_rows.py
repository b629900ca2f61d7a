"""The objects of a segment as other clusters have them: what a copy without replicas can be mended from.

Asked over the HTTP face that batch jobs read (`aae.row_wire`), of the clusters that full-sync compares with, with its
tokens. Runs in a thread; nothing is believed here: who asks proves each object by its own key row or tree.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from aae import row_wire
from aae.row_wire import Frames, Rows, RowsAsked, Tail, View
from repl.model.errors import CodecError, PeerFault
from repl.store.rows import SEGMENT_BYTES
from repl.transport.http_client import Access, HttpPeer, as_protected

PLAN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest plan that is read: some 100,000 copies."""


def foreign_objects(
    urls: Sequence[str], access: Access, timeout_ms: int, bucket_type: bytes, segment: int
) -> dict[bytes, bytes]:
    """Name (bucket and key as in a row's name) -> canonical object bytes. Raises PeerFault, CodecError."""
    trouble: PeerFault | CodecError = PeerFault("no node of the other cluster has a copy of it")
    for url in urls:
        peer = HttpPeer(url, 1, access)
        try:
            path = f"{row_wire.PLAN_PATH}?bucket_type={quote(bucket_type, safe='')}"
            places = _places(peer.get(path, timeout_ms=timeout_ms, limit_bytes=PLAN_BYTES_MAX), segment, url)
        except (PeerFault, CodecError) as error:
            trouble = error
            continue
        finally:
            peer.cut()
        for partition, node in places:
            try:
                return _asked(node, access, timeout_ms, RowsAsked(bucket_type, partition, segment, segment + 1))
            except (PeerFault, CodecError) as error:
                trouble = error
    raise trouble


def _places(plan: bytes, segment: int, asked_url: str) -> list[tuple[int, str]]:
    """(partition, URL) of the whole copies that have the segment, leaders first; with TLS where `asked_url` has it.
    Raises CodecError."""
    try:
        found: list[tuple[bool, int, str]] = []
        for one in json.loads(plan)["partitions"]:
            first, end = one["segments"]
            if first <= segment < end:
                copies: list[Any] = [copy for copy in one["copies"] if copy["whole"]]
                found += [(not copy["leads"], int(one["partition"]), str(copy["http"])) for copy in copies]
        return [(partition, as_protected(url, asked_url)) for _, partition, url in sorted(found)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CodecError(f"not a plan of rows: {error!r:.200}") from error


def _asked(url: str, access: Access, timeout_ms: int, asked: RowsAsked) -> dict[bytes, bytes]:
    question = row_wire.encode_rows_asked(asked._replace(view=View.OBJECTS))
    peer = HttpPeer(url, 1, access)
    try:
        data = peer.post(
            row_wire.ROWS_PATH,
            question,
            media_type=row_wire.MEDIA_TYPE,
            timeout_ms=timeout_ms,
            limit_bytes=row_wire.FRAME_BYTES_MAX,
        )
    finally:
        peer.cut()
    found: dict[bytes, bytes] = {}
    last: object = None
    for last in Frames().feed(data):
        if isinstance(last, Rows):
            names = (bytes(name)[SEGMENT_BYTES:] for name in last.names)
            found.update(zip(names, map(bytes, last.objects), strict=True))
    if not isinstance(last, Tail) or last.rows != len(found):
        raise CodecError(f"{url}: the stream of rows has no end")
    return found
