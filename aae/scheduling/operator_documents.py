"""Operators' settings of full-sync at run time: peers that are added, changed or removed, and suspensions.

Two documents in the metastore hold them for all nodes, also those that are down, over restarts, with who, when and why.
Per key of the settings a node uses its own entry, else the entry of all nodes, else its file. `effective_peers` and
`suspension_for` are pure; `OperatorDocuments` reads both again when a watch fires; the other functions write.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

import structlog

from isthmus.aae.ports import PeerAccess
from isthmus.config.fullsync_values import WHERE_TO, changed_settings
from isthmus.config.settings import FullSyncSettings
from isthmus.repl.metastore.port import Metastore, Unavailable, Versioned
from isthmus.repl.metastore.watched_document import change_value
from isthmus.repl.model.errors import BadInput, CodecError, IsthmusError, NotReady, OutcomeUnknown

log = structlog.get_logger(__name__)

PEERS_PATH: Final = "/fullsync/peers"
SUSPENSIONS_PATH: Final = "/fullsync/suspensions"

ALL_NODES: Final = "*"
"""Stands for every node in an entry; no node can have this name."""

ENTRIES_MAX: Final = 256
"""Entries per document; further ones are refused. A cluster has a handful of peers and nodes."""

WATCH_INTERVAL_S: Final = 5.0
"""Interval at which the documents are read, besides watches of the metastore."""


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


def decode_peers(value: bytes) -> dict[str, dict[str, PeerOverride]]:
    """Decode the document of peers. Raises CodecError. Settings of later versions are kept but not used."""
    try:
        return {
            str(name): {str(node): _entry(row) for node, row in rows.items()}
            for name, rows in json.loads(value)["peers"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CodecError(f"{PEERS_PATH} in the metastore is not a list of peers: {error!r:.200}") from error


def _entry(row: Mapping[str, Any]) -> PeerOverride:
    values = row["values"]
    if not isinstance(values, dict):
        raise TypeError("values are no object")
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


def decode_suspensions(value: bytes) -> tuple[FullSyncSuspension, ...]:
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
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CodecError(f"{SUSPENSIONS_PATH} in the metastore is not a list of suspensions: {error!r:.200}") from error


def encode_suspensions(suspensions: Sequence[FullSyncSuspension]) -> bytes:
    return json.dumps([asdict(one) for one in suspensions]).encode()


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
    def changed(current: bytes | None) -> bytes:
        entries = {} if current is None else decode_peers(current)
        rows = {node: one for node, one in change(dict(entries.pop(name, {}))).items() if _matters(one)}
        if rows:
            entries[name] = rows
        if sum(map(len, entries.values())) > ENTRIES_MAX:
            raise BadInput(f"{ENTRIES_MAX} entries of peers are kept at most: go back to the files of some (--default)")
        return encode_peers(entries)

    value = await _change_value(metastore, PEERS_PATH, changed)
    return {} if value is None else decode_peers(value)


def _matters(entry: PeerOverride) -> bool:
    return bool(entry.values) or entry.removed or entry.added


async def suspend(metastore: Metastore, new: FullSyncSuspension) -> tuple[FullSyncSuspension, ...]:
    """Suspend what `new` covers; replaces a suspension of the same peer and node. Raises BadInput, NotReady."""

    def changed(before: tuple[FullSyncSuspension, ...]) -> tuple[FullSyncSuspension, ...]:
        kept = tuple(one for one in before if (one.peer, one.node) != (new.peer, new.node))
        if len(kept) >= ENTRIES_MAX:
            raise BadInput(f"{ENTRIES_MAX} suspensions are kept at most: resume some first")
        return (*kept, new)

    return await _change_suspensions(metastore, changed, unreadable_ends=False)


async def resume(metastore: Metastore, peer: str | None, node: str | None) -> tuple[FullSyncSuspension, ...]:
    """Lift the suspensions that (peer, node) covers; without both all, also unreadable ones. Raises BadInput if a wider
    suspension keeps all of it suspended, NotReady."""

    def changed(before: tuple[FullSyncSuspension, ...]) -> tuple[FullSyncSuspension, ...]:
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
    change: Callable[[tuple[FullSyncSuspension, ...]], tuple[FullSyncSuspension, ...]],
    *,
    unreadable_ends: bool,
) -> tuple[FullSyncSuspension, ...]:
    def changed(current: bytes | None) -> bytes | None:
        try:
            before = () if current is None else decode_suspensions(current)
        except CodecError as error:
            if not unreadable_ends:
                raise BadInput(f"{error}: isthmus fullsync resume, with nothing named, ends all of it") from error
            log.warning("fullsync.unreadable_suspensions_ended", value=repr(current)[:200])
            return encode_suspensions(())
        after = change(before)
        return None if after == before else encode_suspensions(after)

    value = await _change_value(metastore, SUSPENSIONS_PATH, changed)
    return () if value is None else decode_suspensions(value)


# ---------------------------------------------------------------- reading


async def _read_value(metastore: Metastore, path: str) -> Versioned | None:
    """The value at `path`. Raises NotReady when the metastore cannot be reached."""
    try:
        return await metastore.get(path)
    except Unavailable as error:
        raise NotReady("the metastore cannot be reached") from error


async def _change_value(
    metastore: Metastore, path: str, change: Callable[[bytes | None], bytes | None]
) -> bytes | None:
    """Conditional read and write; returns the value after it. Raises NotReady also where the write may have taken
    effect: `change` may be repeated."""

    def changed(found: Versioned | None) -> bytes | None:
        return change(None if found is None else found.value)

    try:
        found, _ = await change_value(metastore, path, changed)
    except OutcomeUnknown as error:
        raise NotReady(str(error)) from error
    return None if found is None else found.value


class OperatorDocuments:
    """Both documents as this node last read them."""

    def __init__(self, metastore: Metastore, on_read: Callable[[], None]) -> None:
        """`on_read` is called after each read; it must not block."""
        self._metastore = metastore
        self._on_read = on_read
        self.entries: Entries = {}
        self.suspensions: tuple[FullSyncSuspension, ...] | None = None
        """None: never read."""
        self.unreadable: dict[str, str] = {}
        """Path -> why its document cannot be decoded; its previous content counts."""
        self._hinted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read, and to follow."""
        self._metastore.watch(self._hint)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _hint(self, path: str) -> None:
        if path in (PEERS_PATH, SUSPENSIONS_PATH):
            self._hinted.set()

    async def _watch(self) -> None:
        while True:
            self._hinted.clear()
            try:
                await self.refresh()
            except IsthmusError as error:
                log.warning("fullsync.operators_unread", error=str(error))
            except Exception:
                log.exception("fullsync.operators_bug")  # the next read may succeed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_INTERVAL_S):
                    await self._hinted.wait()

    async def refresh(self) -> None:
        """Read both now. Raises NotReady when the metastore cannot be reached; the previous content counts."""
        suspensions = await _read_value(self._metastore, SUSPENSIONS_PATH)
        peers = await _read_value(self._metastore, PEERS_PATH)
        for path, found, take in (
            (SUSPENSIONS_PATH, suspensions, self._take_suspensions),
            (PEERS_PATH, peers, self._take_peers),
        ):
            try:
                take(None if found is None else found.value)
            except CodecError as error:
                if self.unreadable.get(path) != str(error):
                    log.error("fullsync.operators_malformed", path=path, error=str(error))
                self.unreadable[path] = str(error)
            else:
                self.unreadable.pop(path, None)
        self._on_read()

    def _take_suspensions(self, value: bytes | None) -> None:
        self.suspensions = () if value is None else decode_suspensions(value)

    def _take_peers(self, value: bytes | None) -> None:
        self.entries = {} if value is None else decode_peers(value)
