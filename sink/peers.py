"""Peers and workers of single queues that operators have set while a sink runs, beside those of the config files.

Kept in the metastore as one small JSON object, so that it holds on all nodes and over restarts, with who, when and why:

    {"peers": [{"queue", "url", "cluster", "token_file", "removed", "by", "at_ms", "reason"}],
     "workers": [{"queue", "node", "workers", "by", "at_ms", "reason"}]}

An entry of a peer counts before the file's: an added one is fetched from, a removed one is not. `in_force` and
`workers_of` are pure; `change_peer` and `change_workers` write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from isthmus.config.settings import PeerSettings
from isthmus.config.validation import check_name, check_peer_url
from isthmus.queues.queue_documents import change_value, json_object, read_value
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.sink.suspensions import SinkSuspension

log = structlog.get_logger(__name__)

PATH: Final = "/sink/peers"

ENTRIES_MAX: Final = 256
"""Most peers, and most limits of queues, that are kept: each peer is a link with connections, and is asked every few
seconds which nodes live."""


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """A peer that an operator has added, or (`removed`) one that is not fetched from though a file lists it."""

    queue: str
    url: str
    cluster: str
    token_file: str | None
    removed: bool
    by: str
    at_ms: int
    reason: str

    def settings(self) -> PeerSettings:
        """As a config file would have it."""
        return PeerSettings(
            self.url, self.queue, self.cluster, None if self.token_file is None else Path(self.token_file)
        )


@dataclass(frozen=True, slots=True)
class QueueWorkers:
    """How many workers may be busy with a queue at once, on one node or (None) on all."""

    queue: str
    node: str | None
    workers: int
    by: str
    at_ms: int
    reason: str


class SetPeers(NamedTuple):
    """All that is set."""

    peers: tuple[PeerEntry, ...] = ()
    workers: tuple[QueueWorkers, ...] = ()


def unread(at_ms: int) -> SinkSuspension:
    """Stands, since `at_ms` (wall clock), where nobody could read yet which peers are set: a removed one may be among
    those of the file."""
    why = f"the peers that operators have set cannot be read (metastore: {PATH}); {_REPAIR}"
    return SinkSuspension(None, None, "?", at_ms, why)


_REPAIR: Final = "write what stood there, or {} for none"


def in_force(file: Iterable[PeerSettings], entries: Iterable[PeerEntry]) -> list[tuple[PeerSettings, PeerEntry | None]]:
    """The peers to fetch from, each with the entry that it comes from; None: from the file."""
    by_name = {(one.queue, one.url): one for one in entries}
    listed = [(peer, None) for peer in file if (peer.queue, peer.url) not in by_name]
    return [*listed, *((one.settings(), one) for one in by_name.values() if not one.removed)]


def workers_of(node: str, entries: Iterable[QueueWorkers]) -> dict[str, int]:
    """Queue -> most workers at `node`: its own entry, else that of all nodes."""
    found = {one.queue: one.workers for one in entries if one.node is None}
    return found | {one.queue: one.workers for one in entries if one.node == node}


def decode(value: bytes) -> SetPeers:
    """Raises CodecError."""
    raw = json_object(value, "list of a sink's peers")
    try:
        peers = tuple(
            PeerEntry(
                check_name(row["queue"]),
                check_peer_url(row["url"]),
                str(row.get("cluster") or ""),
                None if row.get("token_file") is None else str(row["token_file"]),
                row.get("removed") is True,
                *_act_of(row),
            )
            for row in raw.get("peers", ())
        )
        workers = tuple(
            QueueWorkers(
                check_name(row["queue"]),
                None if row.get("node") is None else str(row["node"]),
                _count(row["workers"]),
                *_act_of(row),
            )
            for row in raw.get("workers", ())
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"not a list of a sink's peers: {error!r:.200}") from error
    return SetPeers(peers, workers)


def _act_of(row: dict[str, Any]) -> tuple[str, int, str]:
    at_ms = row.get("at_ms")
    return str(row.get("by", "")), at_ms if type(at_ms) is int else 0, str(row.get("reason", ""))


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"workers are a whole number from 1, not {value!r:.40}")
    return value


def encode(found: SetPeers) -> bytes:
    """A metastore value."""
    return json.dumps({name: [asdict(one) for one in rows] for name, rows in found._asdict().items()}).encode()


async def read(metastore: Metastore) -> SetPeers:
    """What is set now. Raises NotReady, CodecError."""
    found = await read_value(metastore, PATH)
    return SetPeers() if found is None else decode(found.value)


async def change_peer(metastore: Metastore, entry: PeerEntry, *, in_file: bool) -> SetPeers:
    """Add the peer of `entry`, or remove it; `in_file`: the config lists it, so that an entry is needed to remove it
    and none to add it again. Returns what is set then. Raises NotReady, BadInput."""

    def changed(found: SetPeers) -> SetPeers:
        others = tuple(one for one in found.peers if (one.queue, one.url) != (entry.queue, entry.url))
        plain = not entry.cluster and entry.token_file is None
        needed = in_file if entry.removed else not (in_file and plain)
        return found._replace(peers=(*others, entry) if needed else others)

    return await _change(metastore, changed)


async def change_workers(metastore: Metastore, queue: str, node: str | None, wish: QueueWorkers | None) -> SetPeers:
    """Set how many workers a queue may have on `node`, or (None) on all; `wish` None: no limit of its own. Returns what
    is set then. Raises NotReady, BadInput."""

    def changed(found: SetPeers) -> SetPeers:
        others = tuple(one for one in found.workers if (one.queue, one.node) != (queue, node))
        return found._replace(workers=others if wish is None else (*others, wish))

    return await _change(metastore, changed)


async def _change(metastore: Metastore, change: Callable[[SetPeers], SetPeers]) -> SetPeers:
    def changed(current: bytes | None) -> bytes:
        try:
            found = change(SetPeers() if current is None else decode(current))
        except CodecError as error:
            raise BadInput(f"{PATH} in the metastore cannot be read ({error}): {_REPAIR}") from error
        if max(len(found.peers), len(found.workers)) > ENTRIES_MAX:
            raise BadInput(f"{ENTRIES_MAX} peers, or limits of queues, are kept at most: the files may have more")
        return encode(found)

    value = await change_value(metastore, PATH, changed)
    return SetPeers() if value is None else decode(value)
