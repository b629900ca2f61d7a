"""Peers, and worker limits of queues, that operators set while a sink runs, beside those of the config files.

They are in the metastore (`sink.operator_settings`), so that they hold on all nodes and over restarts, with who, when
and why:

    {"peers": [{"queue", "url", "cluster", "token_file", "removed", "by", "at_ms", "reason"}],
     "workers": [{"queue", "node", "workers", "by", "at_ms", "reason"}]}

A peer's entry overrides the file: an added peer is fetched from, a removed one is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from isthmus.config.settings import PeerSettings
from isthmus.config.validation import check_name, check_peer_url
from isthmus.queues.json_document import decode_json, encode_json, json_document
from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.sink.suspensions import SETTINGS_PATH, SinkSuspension

PATH: Final = "/sink/peers"

ENTRIES_MAX: Final = 256
"""Most peers, and most limits of queues: each peer is a link with connections, and is asked for its live nodes every
few seconds."""


class PeerEntry(Struct, frozen=True):
    """A peer that an operator has added, or (`removed`) one that is not fetched from though a file lists it."""

    queue: str
    url: str
    cluster: str = ""
    token_file: str | None = None
    removed: bool = False
    by: str = ""
    at_ms: int = 0
    reason: str = ""

    def settings(self) -> PeerSettings:
        """The form of a config file."""
        return PeerSettings(
            self.url, self.queue, self.cluster, None if self.token_file is None else Path(self.token_file)
        )


class QueueWorkers(Struct, frozen=True):
    """Most workers that may be busy with a queue at once, on one node or (None) on all."""

    queue: str
    node: str | None
    workers: Annotated[int, Meta(ge=1)]
    by: str = ""
    at_ms: int = 0
    reason: str = ""


class SetPeers(Struct, frozen=True):
    """All that is set."""

    peers: tuple[PeerEntry, ...] = ()
    workers: tuple[QueueWorkers, ...] = ()


_REPAIR: Final = "write what was there, or {} for none"


def unread(at_ms: int) -> SinkSuspension:
    """Placeholder that suspends all links, since `at_ms` (wall clock), while the peers have not been read: a removed
    peer may be in the file."""
    where = f"{PATH}, or peers in {SETTINGS_PATH}"
    why = f"the peers that operators have set cannot be read (metastore: {where}); {_REPAIR}"
    return SinkSuspension(None, None, "?", at_ms, why)


def peers_in_effect(
    file: Iterable[PeerSettings], entries: Iterable[PeerEntry]
) -> list[tuple[PeerSettings, PeerEntry | None]]:
    """The peers to fetch from, each with the entry that it comes from; None: from the file."""
    by_name = {(one.queue, one.url): one for one in entries}
    listed = [(peer, None) for peer in file if (peer.queue, peer.url) not in by_name]
    return [*listed, *((one.settings(), one) for one in by_name.values() if not one.removed)]


def workers_of(node: str, entries: Iterable[QueueWorkers]) -> dict[str, int]:
    """Queue -> most workers at `node`: its own entry, else that of all nodes."""
    found = {one.queue: one.workers for one in entries if one.node is None}
    return found | {one.queue: one.workers for one in entries if one.node == node}


def decode(value: bytes) -> SetPeers:
    """The peers in a metastore value. Raises CodecError."""
    found = decode_json(value, SetPeers, "list of a sink's peers")
    try:
        return SetPeers(
            tuple(replace(one, queue=check_name(one.queue), url=check_peer_url(one.url)) for one in found.peers),
            tuple(replace(one, queue=check_name(one.queue)) for one in found.workers),
        )
    except ValueError as error:
        raise CodecError(f"not a list of a sink's peers: {error!s:.200}") from error


DOCUMENT: Final[Document[SetPeers]] = json_document(PATH, decode, encode_json, SetPeers())


def with_peer(found: SetPeers, entry: PeerEntry, *, in_file: bool) -> SetPeers:
    """`found` with the peer of `entry` added or removed; `in_file`: the config lists it, so that an entry is needed to
    remove it and none to add it again. Raises BadInput at the limit."""
    others = tuple(one for one in found.peers if (one.queue, one.url) != (entry.queue, entry.url))
    plain = not entry.cluster and entry.token_file is None
    needed = in_file if entry.removed else not (in_file and plain)
    return _bounded(replace(found, peers=(*others, entry) if needed else others))


def with_workers(found: SetPeers, queue: str, node: str | None, new: QueueWorkers | None) -> SetPeers:
    """`found` with the limit of a queue on `node`, or (None) on all; `new` None: no limit of its own. Raises BadInput
    at the limit."""
    others = tuple(one for one in found.workers if (one.queue, one.node) != (queue, node))
    return _bounded(replace(found, workers=others if new is None else (*others, new)))


def _bounded(found: SetPeers) -> SetPeers:
    if max(len(found.peers), len(found.workers)) > ENTRIES_MAX:
        raise BadInput(f"{ENTRIES_MAX} peers, or limits of queues, are kept at most: the files may have more")
    return found


def refuse_unreadable(error: CodecError) -> SetPeers:
    """Raises BadInput where the document cannot be decoded."""
    raise BadInput(f"the peers that are set cannot be read ({error}): {_REPAIR}") from error
