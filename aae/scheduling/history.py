"""State of full-sync that survives restarts: results, learned ranges, suspensions. In the data directory.

One small document in two slot files (`repl.storage.slot_file`), written after each check and each act of an operator. A
part that cannot be read is logged and replaced by the initial value; the other parts stay: no part decides about data.
A peer whose suspension cannot be read stays suspended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import structlog

from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.aae.scheduling.proofs import Proof
from isthmus.aae.scheduling.schedule import CheckKind, PeerScheduleState, TimeRange
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import Corruption
from isthmus.repl.storage.slot_file import SlotFile

log = structlog.get_logger(__name__)

RESULTS_KEPT: Final = 200
"""Newest results per peer: a day of frequent checks, and 100 KB."""

RESULTS_SAVED: Final = 5_000
"""Newest results of all peers together that are saved, an equal share each: some MB, written at each check."""

WORDS_KEPT: Final = 1_000
"""Saved characters of a reason and of an operator's name: texts of peers and operators have no other limit."""

NAMED_KEPT: Final = 1_000
"""Differing keys saved per bucket type; in memory there are more (`aae.scheduling.check`)."""

NAMED_BYTES: Final = 256 * 1024
"""Saved bytes of all these keys together; with several peers and types, or long keys, fewer are saved."""

FORM: Final = 1

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Suspended:
    """An operator's suspension of a peer's checks: author, time and reason."""

    by: str
    at_ms: int
    reason: str
    stored: bool = False
    """It is in the metastore, and is lifted there; this copy counts until the metastore was read."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check of one bucket type. Times are wall clock. `proven`: the other cluster had all of this
    cluster's writes of `began_ms`, as far as the filter lets them through."""

    bucket_type: str
    kind: CheckKind
    began_ms: int
    seconds: float
    verdict: ExchangeVerdict
    reason: str
    proven: bool
    segments: int
    keys: int
    differences: Mapping[str, int]
    queued: int
    left: int
    """Keys that were to be repaired and were not queued."""
    transient: int
    filtered: int
    by: str
    """The user who requested it; "" for the schedule."""
    unexplained: int = 0
    """Segments that differ in keys that this check did not compare."""
    refused: int = 0
    """Repairs enqueued before it that the other cluster refused for good, or that had no effect."""
    segments_ahead: int = 0
    """Segments outside the check's range that differ, and there only in keys that are ahead on the other side."""
    lacking: bool = False
    """The other cluster does not have the bucket type: nothing was compared."""


class DifferingKeys(NamedTuple):
    """Keys that differed in the check that began at `began_ms`, each with its difference, such as "missing@sink".
    Unless `every`, more keys differed or may differ."""

    began_ms: int
    keys: Mapping[tuple[bytes, bytes], str]
    every: bool


@dataclass(slots=True)
class PeerHistory:
    """State of one peer."""

    schedule_state: PeerScheduleState
    suspended: Suspended | None = None
    results: deque[CheckResult] = field(default_factory=lambda: deque(maxlen=RESULTS_KEPT))
    proven_ms: dict[str, int] = field(default_factory=dict)
    """Bucket type -> begin of the newest check that proved `cluster` up to date."""
    equal_ms: dict[str, int] = field(default_factory=dict)
    """Bucket type -> begin of the newest check that found both clusters equal."""
    proofs: dict[str, Proof] = field(default_factory=dict)
    """Bucket type -> what checks of this process have proven to be at `cluster`; not saved."""
    cluster: str = ""
    """The uuid of the other cluster in hex; "" before its first response."""
    named: dict[bytes, DifferingKeys] = field(default_factory=dict)
    """Bucket type -> differing keys of its newest check, the first NAMED_KEPT."""

    queue: str = ""
    """The queue whose filter decided what was compared; "" if unknown."""
    added_ms: int = 0
    """When an operator added the peer; 0: it is in the settings file."""

    def compares_by(self, queue: str, added_ms: int) -> None:
        """Set the queue and the identity of the peer. A change drops proofs made with another filter or peer, and lets
        `auto` compare more."""
        if added_ms != self.added_ms:
            self.results.clear()
            self.schedule_state = replace(self.schedule_state, learned=None)
        if added_ms != self.added_ms or (self.queue and queue != self.queue):
            self._drop_proofs()
            self.named.clear()
            self.schedule_state = replace(self.schedule_state, failed=True, quiet=0)
        self.queue, self.added_ms = queue, added_ms

    def name(self, bucket_type: bytes, named: DifferingKeys) -> None:
        """Record what differed."""
        self.named[bucket_type] = _first(named, NAMED_KEPT, NAMED_BYTES)

    def answered(self, cluster: bytes | None) -> None:
        """Record which cluster responded; proofs of another cluster are dropped."""
        uuid = "" if cluster is None else cluster.hex()
        if uuid and uuid != self.cluster:
            if self.cluster:
                self._drop_proofs()
            self.cluster = uuid

    def _drop_proofs(self) -> None:
        self.proven_ms.clear()
        self.equal_ms.clear()
        self.proofs.clear()


def _first(named: DifferingKeys, count: int, size: int) -> DifferingKeys:
    """The first `count` keys at most, whose names have `size` bytes in all."""
    kept: dict[tuple[bytes, bytes], str] = {}
    for (bucket, key), difference in islice(named.keys.items(), count):
        size -= len(bucket) + len(key) + ROW_BYTES
        if size < 0:
            break
        kept[bucket, key] = difference
    return DifferingKeys(named.began_ms, kept, named.every and len(kept) == len(named.keys))


ROW_BYTES: Final = 32
"""Size of a key besides its names, with its difference."""


class FullSyncHistory:
    """The histories of all peers of this node, by name."""

    def __init__(self, directory: Path, started_ms: int) -> None:
        self._slots = SlotFile(directory, "fullsync")
        self._started_ms = started_ms
        self._numbers = count(1)
        self._writing = machine().lock()
        self._written = 0
        """Number of the newest save that is on disk."""
        self.peers: dict[str, PeerHistory] = {}

    def load(self) -> None:
        """Read the document. Raises LocalFault."""
        try:
            raw = self._slots.read()
            document = {} if raw is None else _document(raw)
        except (Corruption, ValueError) as error:
            log.error("fullsync.memory_unreadable", error=str(error), begun="anew")
            document = {}
        self.peers = {str(name): _peer(str(name), one, self._started_ms) for name, one in document.items()}

    def peer(self, name: str) -> PeerHistory:
        """A peer's history; of a new one it begins with this node's start."""
        found = self.peers.get(name)
        if found is None:
            found = self.peers[name] = PeerHistory(PeerScheduleState(self._started_ms))
        return found

    def forget(self, name: str) -> None:
        """Remove a peer."""
        self.peers.pop(name, None)

    def prepare_save(self) -> Callable[[], None]:
        """A function that saves the current state durably; it may be called in any thread, blocks, and raises
        LocalFault. Concurrent saves are ordered; one that is older than the state on disk does nothing."""
        number = next(self._numbers)
        peers = {
            name: replace(
                one,
                results=one.results.copy(),
                proven_ms={**one.proven_ms},
                equal_ms={**one.equal_ms},
                named={**one.named},
            )
            for name, one in self.peers.items()
        }

        def save() -> None:
            share = NAMED_BYTES // max(1, sum(len(one.named) for one in peers.values()))
            results = RESULTS_SAVED // max(1, len(peers))
            with self._writing:
                if number > self._written:
                    plain = {name: _plain(one, share, results) for name, one in peers.items()}
                    self._slots.write({"v": FORM, "peers": plain})
                    self._written = number

        return save


def _document(raw: Any) -> dict[Any, Any]:
    if not isinstance(raw, dict) or raw.get("v") != FORM or not isinstance(raw.get("peers"), dict):
        raise ValueError("not the memory of full-sync, or of another version")
    found: dict[Any, Any] = raw["peers"]
    return found


def _plain(one: PeerHistory, named_bytes: int, results_kept: int = RESULTS_KEPT) -> dict[str, Any]:
    named = {name: _first(found, NAMED_KEPT, named_bytes) for name, found in one.named.items()}
    return {
        "standing": asdict(one.schedule_state),
        "suspended": None if one.suspended is None else _suspension(one.suspended),
        "results": [
            _short({**asdict(result), "differences": dict(result.differences)})
            for result in islice(one.results, max(0, len(one.results) - results_kept), None)
        ],
        "proven": one.proven_ms,
        "equal": one.equal_ms,
        "cluster": one.cluster,
        "queue": one.queue,
        "added_ms": one.added_ms,
        "named": [
            [name, kept.began_ms, kept.every, [[*key, difference] for key, difference in kept.keys.items()]]
            for name, kept in named.items()
        ],
    }


def _short(saved: dict[str, Any]) -> dict[str, Any]:
    return {**saved, "reason": saved["reason"][:WORDS_KEPT], "by": saved["by"][:WORDS_KEPT]}


def _peer(name: str, raw: Any, started_ms: int) -> PeerHistory:
    """Decode a peer part by part; an unreadable part gets the value of a new peer."""

    def read(part: str, reader: Callable[[Any], Part], otherwise: Part) -> Part:
        try:
            return reader(raw[part])
        except (AttributeError, KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
            log.error("fullsync.memory_unreadable", peer=name, part=part, error=repr(error), begun="anew")
            return otherwise

    if isinstance(raw, dict):
        # Parts that earlier programs did not save; what they called proven was equal.
        raw = {"named": (), "cluster": "", "queue": "", "added_ms": 0, "equal": raw.get("proven"), **raw}
    suspended = isinstance(raw, dict) and raw.get("suspended") is not None
    return PeerHistory(
        read("standing", _schedule_state, PeerScheduleState(started_ms)),
        read(
            "suspended", _decode_suspended, Suspended("?", 0, "who suspended it cannot be read") if suspended else None
        ),
        read(
            "results",
            lambda part: deque((msgspec.convert(one, CheckResult) for one in part), maxlen=RESULTS_KEPT),
            deque(maxlen=RESULTS_KEPT),
        ),
        read("proven", _times, {}),
        read("equal", _times, {}),
        cluster=read("cluster", lambda part: bytes.fromhex(part).hex(), ""),
        queue=read("queue", str, ""),
        added_ms=read("added_ms", int, 0),
        named=read("named", lambda part: {bytes(bucket_type): _named(*rest) for bucket_type, *rest in part}, {}),
    )


def _times(raw: Any) -> dict[str, int]:
    return {str(bucket_type): int(at_ms) for bucket_type, at_ms in raw.items()}


def _decode_suspended(raw: Any) -> Suspended | None:
    return msgspec.convert(raw, Suspended | None)


def _suspension(one: Suspended) -> dict[str, Any]:
    """As saved; `stored` only if True, since earlier versions do not know it."""
    saved = _short(asdict(one))
    return saved if one.stored else {key: value for key, value in saved.items() if key != "stored"}


def _schedule_state(raw: Mapping[str, Any]) -> PeerScheduleState:
    learned = raw["learned"]
    return PeerScheduleState(
        int(raw["succeeded_ms"]),
        bool(raw["failed"]),
        int(raw["quiet"]),
        None if learned is None else TimeRange(**learned),
        int(raw.get("suppressed", 0)),
    )


def _named(began_ms: int, every: bool, keys: list[tuple[bytes, bytes, str]]) -> DifferingKeys:
    return DifferingKeys(int(began_ms), {(bytes(b), bytes(k)): str(what) for b, k, what in keys}, bool(every))
