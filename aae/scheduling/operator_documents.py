"""Operators' settings of full-sync at run time: peers that are added, changed or removed, and suspensions.

One document in the metastore (`SETTINGS`) holds them for all nodes, also those that are down, over restarts, with who,
when and why. Per key of the settings a node uses its own entry, else the entry of all nodes, else its file.
`effective_peers` and `suspension_for` are pure; `OperatorDocuments` follows the document; the other functions write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

import structlog

from isthmus.aae.ports import PeerAccess
from isthmus.config.fullsync_values import WHERE_TO, changed_settings
from isthmus.config.settings import FullSyncSettings
from isthmus.repl.metastore.joined_document import JoinedDocument, WatchedJoinedDocument
from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict
from isthmus.repl.metastore.watched_document import Document, DocumentEvents
from isthmus.repl.model.errors import BadInput, CodecError, NotReady, OutcomeUnknown

log = structlog.get_logger(__name__)

SETTINGS_PATH: Final = "/fullsync/settings"
"""Where peers and suspensions are one document."""

PEERS_PATH: Final = "/fullsync/peers"
SUSPENSIONS_PATH: Final = "/fullsync/suspensions"

ALL_NODES: Final = "*"
"""Stands for every node in an entry; no node can have this name."""

ENTRIES_MAX: Final = 256
"""Entries of peers, and suspensions; further ones are refused. A cluster has a handful of peers and nodes."""

EVENTS: Final = DocumentEvents(
    "fullsync.operators_malformed", "fullsync.operators_unread", listener_failed="fullsync.operators_bug"
)


@dataclass(frozen=True, slots=True)
class PeerOverride:
    """Settings of one peer on one node or on all. `values`: keys of [[fullsync]] as in a file; `added`: creates a peer
    that files lack; `removed`: removes the peer, also where a file has it. `added_ms`: when it was added, 0 for a peer
    of files."""

    values: Mapping[str, Any] = field(default_factory=dict)
    added: bool = False
    removed: bool = False
    added_ms: int = 0
    by: str = ""
    at_ms: int = 0
    reason: str = ""


Entries = Mapping[str, Mapping[str, PeerOverride]]
"""Peer -> node or ALL_NODES -> entry."""


@dataclass(frozen=True, slots=True)
class FullSyncSuspension:
    """A suspension by an operator; None means every peer, every node."""

    peer: str | None
    node: str | None
    by: str
    at_ms: int
    reason: str


Suspensions = tuple[FullSyncSuspension, ...]


class EffectivePeer(NamedTuple):
    """A peer's settings on one node; `entries`: the overrides that they include."""

    settings: FullSyncSettings
    entries: tuple[PeerOverride, ...]

    @property
    def added_ms(self) -> int:
        """When an operator added it; 0: it is in the file."""
        return max((entry.added_ms for entry in self.entries), default=0)


class EffectivePeers(NamedTuple):
    """All peers of one node. `removed`: peers of its file that an operator removed; `faults`: name -> why an override
    is invalid here."""

    peers: tuple[EffectivePeer, ...]
    removed: Mapping[str, PeerOverride]
    faults: Mapping[str, str]


def effective_peers(
    node: str, file: Sequence[FullSyncSettings], entries: Entries, access: PeerAccess
) -> EffectivePeers:
    """The peers of `node`: those of its file, then added ones by name, with the token files of `access`."""
    peers, removed, faults = [], {}, {}
    own = {one.name: one for one in file}
    for name in (*own, *sorted(entries.keys() - own)):
        of_all, of_node = (entries.get(name, {}).get(key) for key in (ALL_NODES, node))
        base, last = own.get(name), of_node or of_all
        if last is None:
            if base is not None:
                peers.append(EffectivePeer(base, ()))
            continue
        if last.removed or (of_all is not None and of_all.removed and not last.added):
            if base is not None:
                removed[name] = last if last.removed or of_all is None else of_all
            continue
        used = tuple(one for one in (of_all, of_node) if one is not None and not one.removed)
        fixed = () if base is None else WHERE_TO
        values = {key: value for one in used for key, value in one.values.items() if key not in fixed}
        try:
            found = changed_settings(base or FullSyncSettings(name, "", ""), values)
        except ValueError as error:
            faults[name] = str(error)
            if base is not None:
                peers.append(EffectivePeer(base, ()))
            continue
        if base is None and not (found.urls and found.queue):
            continue  # it is in another node's file
        if base is None:
            found = replace(found, token_file=access.token_file(found.urls))
        peers.append(EffectivePeer(found, used))
    return EffectivePeers(tuple(peers), removed, faults)


def suspension_for(name: str, node: str, suspensions: Sequence[FullSyncSuspension]) -> FullSyncSuspension | None:
    """The suspension that covers a peer on a node; None if there is none."""
    return next((one for one in suspensions if one.peer in (None, name) and one.node in (None, node)), None)


# ---------------------------------------------------------------- the documents


def decode_peers(value: bytes) -> Entries:
    """Decode the document of peers. Raises CodecError. Settings of later versions are kept but not used."""
    try:
        return {
            str(name): {str(node): _entry(row) for node, row in rows.items()}
            for name, rows in json.loads(value)["peers"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise CodecError(f"not a list of peers: {error!r:.200}") from error


def _entry(row: Mapping[str, Any]) -> PeerOverride:
    values = row["values"]
    if not isinstance(values, dict):
        raise TypeError("values is not an object")
    return PeerOverride(
        values,
        row.get("added") is True,
        row.get("removed") is True,
        int(row.get("added_ms", 0)),
        str(row["by"]),
        int(row["at_ms"]),
        str(row["reason"]),
    )


def encode_peers(entries: Entries) -> bytes:
    rows = {name: {node: asdict(entry) for node, entry in of.items()} for name, of in entries.items()}
    return json.dumps({"peers": rows}).encode()


def decode_suspensions(value: bytes) -> Suspensions:
    """Decode the document of suspensions. Raises CodecError."""
    try:
        return tuple(
            FullSyncSuspension(
                None if row["peer"] is None else str(row["peer"]),
                None if row["node"] is None else str(row["node"]),
                str(row["by"]),
                int(row["at_ms"]),
                str(row["reason"]),
            )
            for row in json.loads(value)
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CodecError(f"not a list of suspensions: {error!r:.200}") from error


def encode_suspensions(suspensions: Sequence[FullSyncSuspension]) -> bytes:
    return json.dumps([asdict(one) for one in suspensions]).encode()


PEERS: Final[Document[Entries]] = Document(
    PEERS_PATH, lambda found: {} if found is None else decode_peers(found.value), encode_peers
)
SUSPENSIONS: Final[Document[Suspensions]] = Document(
    SUSPENSIONS_PATH, lambda found: () if found is None else decode_suspensions(found.value), encode_suspensions
)
SETTINGS: Final = JoinedDocument(SETTINGS_PATH, (SUSPENSIONS, PEERS))


# ---------------------------------------------------------------- acts


class FullSyncAuditInfo(NamedTuple):
    """Author, time (wall clock) and reason of an operator's action."""

    by: str
    at_ms: int
    reason: str


async def add_peer(
    metastore: Metastore, name: str, node: str | None, values: Mapping[str, Any], act: FullSyncAuditInfo
) -> Entries:
    """Add a peer on `node` (None: on all nodes), also where it was removed. Raises BadInput, NotReady."""
    entry = PeerOverride(dict(values), True, False, act.at_ms, *act)

    def changed(rows: dict[str, PeerOverride]) -> dict[str, PeerOverride]:
        return {ALL_NODES: entry} if node is None else {**rows, node: entry}

    return await _change_peers(metastore, name, changed)


async def set_peer(
    metastore: Metastore, name: str, node: str | None, values: Mapping[str, Any], act: FullSyncAuditInfo
) -> Entries:
    """Override settings of a peer. Raises BadInput, NotReady."""

    def changed(rows: dict[str, PeerOverride]) -> dict[str, PeerOverride]:
        before = rows.get(node or ALL_NODES, PeerOverride())
        if before.removed:
            raise BadInput(f"{name} was removed by {before.by}: add it, or go back to the files (--default)")
        now = replace(before, values={**before.values, **values}, by=act.by, at_ms=act.at_ms, reason=act.reason)
        kept = rows if node is not None else {key: _without(entry, values) for key, entry in rows.items()}
        return {**kept, node or ALL_NODES: now}

    return await _change_peers(metastore, name, changed)


async def remove_peer(metastore: Metastore, name: str, node: str | None, act: FullSyncAuditInfo) -> Entries:
    """Remove a peer from `node` (None: from all), also where a file has it. Raises BadInput, NotReady."""
    entry = PeerOverride({}, False, True, 0, *act)

    def changed(rows: dict[str, PeerOverride]) -> dict[str, PeerOverride]:
        return {ALL_NODES: entry} if node is None else {**rows, node: entry}

    return await _change_peers(metastore, name, changed)


async def forget_peer(metastore: Metastore, name: str, node: str | None) -> Entries:
    """Remove the overrides of a peer, so that files count again; removes a peer that was added. Raises BadInput,
    NotReady."""

    def changed(rows: dict[str, PeerOverride]) -> dict[str, PeerOverride]:
        return {} if node is None else {key: entry for key, entry in rows.items() if key != node}

    return await _change_peers(metastore, name, changed)


def _without(entry: PeerOverride, values: Mapping[str, Any]) -> PeerOverride:
    """The entry of one node without `values`, which were just set for all nodes."""
    return replace(entry, values={key: value for key, value in entry.values.items() if key not in values})


async def _change_peers(
    metastore: Metastore, name: str, change: Callable[[dict[str, PeerOverride]], dict[str, PeerOverride]]
) -> Entries:
    def changed(before: Entries) -> Entries:
        entries = dict(before)
        rows = {node: one for node, one in change(dict(entries.pop(name, {}))).items() if _matters(one)}
        if rows:
            entries[name] = rows
        if sum(map(len, entries.values())) > ENTRIES_MAX:
            raise BadInput(f"{ENTRIES_MAX} entries of peers are kept at most: go back to the files of some (--default)")
        return entries

    with _metastore_errors():
        return await SETTINGS.change_one(metastore, PEERS, changed)


def _matters(entry: PeerOverride) -> bool:
    return bool(entry.values) or entry.removed or entry.added


async def suspend(metastore: Metastore, new: FullSyncSuspension) -> Suspensions:
    """Suspend what `new` covers; replaces a suspension of the same peer and node. Raises BadInput, NotReady."""

    def changed(before: Suspensions) -> Suspensions:
        kept = tuple(one for one in before if (one.peer, one.node) != (new.peer, new.node))
        if len(kept) >= ENTRIES_MAX:
            raise BadInput(f"{ENTRIES_MAX} suspensions are kept at most: resume some first")
        return (*kept, new)

    return await _change_suspensions(metastore, changed, unreadable_ends=False)


async def resume(metastore: Metastore, peer: str | None, node: str | None) -> Suspensions:
    """Lift the suspensions that (peer, node) covers; without both all, also unreadable ones. Raises BadInput if a wider
    suspension keeps all of it suspended, NotReady."""

    def changed(before: Suspensions) -> Suspensions:
        kept = tuple(one for one in before if not (peer in (None, one.peer) and node in (None, one.node)))
        holds = [one for one in kept if one.peer in (None, peer) and one.node in (None, node)]
        if len(kept) == len(before):  # nothing is lifted: also name suspensions of a part
            holds += [one for one in kept if _meets(peer, one.peer) and _meets(node, one.node)]
        if holds:
            named = zip(("peer", "node"), (holds[0].peer, holds[0].node), strict=True)
            what = " and ".join(f"{kind} {value}" for kind, value in named if value)
            raise BadInput(f"still suspended as part of {what or 'all full-sync'} (by {holds[0].by}): resume that")
        return kept

    return await _change_suspensions(metastore, changed, unreadable_ends=peer is None and node is None)


def _meets(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other


async def _change_suspensions(
    metastore: Metastore,
    change: Callable[[Suspensions], Suspensions],
    *,
    unreadable_ends: bool,
) -> Suspensions:
    def replacement(error: CodecError) -> Suspensions:
        """The value to change where the document cannot be decoded."""
        if not unreadable_ends:
            raise BadInput(f"{error}: isthmus fullsync resume, with nothing named, ends all of it") from error
        log.warning("fullsync.unreadable_suspensions_ended", value=str(error)[:200])
        return ()

    with _metastore_errors():
        return await SETTINGS.change_one(metastore, SUSPENSIONS, change, replacement)


@contextmanager
def _metastore_errors() -> Iterator[None]:
    """Raise NotReady where the metastore cannot be reached, and where a write may have taken effect: every change may
    be repeated."""
    try:
        yield
    except (Unavailable, Ambiguous, VersionConflict) as error:
        raise NotReady("the metastore cannot be reached") from error
    except OutcomeUnknown as error:
        raise NotReady(str(error)) from error


# ---------------------------------------------------------------- reading


class OperatorDocuments:
    """Peers and suspensions as this node last read them."""

    def __init__(self, metastore: Metastore, on_read: Callable[[], None]) -> None:
        """`on_read` is called after each read, also of what is unreadable; it must not block."""
        self._settings = WatchedJoinedDocument(metastore, SETTINGS, EVENTS, on_read=on_read)
        self.suspensions = self._settings.part(SUSPENSIONS)
        self.peers = self._settings.part(PEERS)

    async def start(self) -> None:
        """Read both once, then follow them."""
        await self._settings.start()

    async def stop(self) -> None:
        """End following; idempotent."""
        await self._settings.stop()

    async def refresh(self) -> None:
        """Read both now. Raises NotReady when the metastore cannot be reached; the previous values count."""
        with _metastore_errors():
            self._settings.expire()
            await self._settings.refresh()
