"""Riak clusters that changes are fetched from: those of the config files, and those that operators set meanwhile.

The latter are a document of their own in the metastore, so that they hold on all nodes and over restarts, with who,
when and why; nodes of a version before it ignore them, and fetch from no Riak:

    {"peers": [{"name", "urls", "queue", ..., "removed", "by", "at_ms", "reason"}]}

An entry overrides the peer of its name in a file. Each URL of a peer is one link of the sink.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from isthmus.config.settings import ALL_TYPES, SINK_WORKERS_MAX, RiakPeerSettings
from isthmus.config.validation import check_name, check_types, check_urls, check_user
from isthmus.queues.json_document import decode_json, encode_json, json_document
from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.sink.scheduler import LinkName
from isthmus.sink.suspensions import SinkSuspension

PATH: Final = "/riak/peers"

ENTRIES_MAX: Final = 64
"""Most Riaks that are set: a cluster has one or two, and each of their nodes is a link with connections."""

Count = Annotated[int, Meta(ge=0)]


class RiakPeerEntry(Struct, frozen=True, kw_only=True):
    """A Riak that an operator has added, or (`removed`) one that is not fetched from though a file lists it."""

    name: str
    urls: str = ""
    queue: str = ""
    bucket_types: str = ALL_TYPES
    workers: Annotated[int, Meta(ge=0, le=SINK_WORKERS_MAX)] = 0
    rate_limit_bytes: Count = 0
    object_rate_limit_count: Count = 0
    user: str = ""
    password_file: str | None = None
    authority: str | None = None
    removed: bool = False
    by: str = ""
    at_ms: int = 0
    reason: str = ""

    def settings(self) -> RiakPeerSettings:
        """The form of a config file."""
        return RiakPeerSettings(
            name=self.name,
            urls=self.urls,
            queue=self.queue,
            bucket_types=self.bucket_types,
            workers=self.workers,
            rate_limit_bytes=self.rate_limit_bytes,
            object_rate_limit_count=self.object_rate_limit_count,
            user=self.user,
            password_file=None if self.password_file is None else Path(self.password_file),
            authority=None if self.authority is None else Path(self.authority),
        )


class RiakPeers(Struct, frozen=True):
    """All that is set."""

    peers: tuple[RiakPeerEntry, ...] = ()


_REPAIR: Final = 'write what was there, or {"peers": []} for none'


def unread(at_ms: int) -> SinkSuspension:
    """Placeholder that suspends all links to Riaks, since `at_ms` (wall clock), while the document has not been read: a
    removed peer may be in the file."""
    why = f"the Riaks that operators have set cannot be read (metastore: {PATH}); {_REPAIR}"
    return SinkSuspension(None, None, "?", at_ms, why)


def checked(entry: RiakPeerEntry) -> RiakPeerEntry:
    """The entry with each value in its normal form. Raises ValueError."""
    check_name(entry.name)
    if entry.removed:
        return entry
    if bool(entry.user) != (entry.password_file is not None):
        raise ValueError("a user and a file with the password belong together")
    return replace(
        entry,
        urls=check_urls(entry.urls),
        queue=check_name(entry.queue),
        bucket_types=check_types(entry.bucket_types),
        user=check_user(entry.user),
    )


def decode(value: bytes) -> RiakPeers:
    """The peers in a metastore value. Raises CodecError."""
    found = decode_json(value, RiakPeers, "list of Riaks")
    try:
        return RiakPeers(tuple(checked(one) for one in found.peers))
    except ValueError as error:
        raise CodecError(f"not a list of Riaks: {error!s:.200}") from error


DOCUMENT: Final[Document[RiakPeers]] = json_document(PATH, decode, encode_json, RiakPeers())


def peers_in_effect(
    file: Iterable[RiakPeerSettings], found: RiakPeers
) -> list[tuple[RiakPeerSettings, RiakPeerEntry | None]]:
    """The Riaks to fetch from, each with the entry that it comes from; None: from the file."""
    by_name = {one.name: one for one in found.peers}
    listed: list[tuple[RiakPeerSettings, RiakPeerEntry | None]] = [
        (peer, None) for peer in file if peer.name not in by_name
    ]
    return [*listed, *((one.settings(), one) for one in found.peers if not one.removed)]


def links_of(peer: RiakPeerSettings) -> list[LinkName]:
    """The links of a Riak, one for each of its nodes."""
    return [LinkName(peer.queue, url) for url in peer.urls.split(",")]


def with_entry(found: RiakPeers, entry: RiakPeerEntry, *, in_file: bool) -> RiakPeers:
    """`found` with the entry, which replaces one of its name. A removal leaves an entry only where a file lists the
    peer. Raises BadInput at the limit."""
    others = tuple(one for one in found.peers if one.name != entry.name)
    after = RiakPeers((*others, entry) if in_file or not entry.removed else others)
    if len(after.peers) > ENTRIES_MAX:
        raise BadInput(f"{ENTRIES_MAX} Riaks are kept at most: the files may have more")
    return after


def refuse_unreadable(error: CodecError) -> RiakPeers:
    """Raises BadInput where the document cannot be decoded."""
    raise BadInput(f"the Riaks that are set cannot be read ({error}): {_REPAIR}") from error
