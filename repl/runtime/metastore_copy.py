"""A copy of the metastore's documents in each data directory, and the restoration of an empty metastore from it.

Bucket types, replica assignments and operators' settings are stored in the metastore only. Each node keeps a copy of
its documents (`CopyKeeper`). If ZooKeeper has lost all its data, `plan_adoption` and `adopt` restore them from such a
copy. Partition records are written as `overtaken` (docs/protocol.md H32): their leaders and ISRs are out of date, so no
leader is elected before `isthmus cluster reseed` has compared all replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from isthmus.repl.metastore.codecs import decode_record, encode_record
from isthmus.repl.metastore.counters import GEN_PATH, ID_MARGIN, PARTITIONS_COUNTER, StoredCounter
from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict, Versioned
from isthmus.repl.model.errors import BadInput, CodecError, Corruption, IsthmusError, LocalFault, NotReady
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.model.record import PartitionRecord, PartitionStatus
from isthmus.repl.storage.slot_file import SLOT_BYTES_MAX, SlotFile
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

NAME: Final = "metastore-copy"
"""Version of the two slot files."""

VERSION: Final = 1

UUID_PATH: Final = "/uuid"
RECORDS_PATH: Final = "/p"

NOT_COPIED: Final = frozenset({"uuid", "p", "nodes", "ids", "replicas", "controller", "joined-readers"})
"""Top-level names that are not restored as documents: the uuid comes from the data directory's identity, records are
read separately, and nodes write the rest when they register."""

DEPTH_MAX: Final = 4
"""Levels below the base path that are read; the deepest documents are on the third."""

COPY_BYTES_MAX: Final = SLOT_BYTES_MAX // 2
"""Largest copy: some 10,000 records. A larger one is not written; an event is logged instead."""

INTERVAL_S: Final = 10.0
"""Least time between two copies; the newest copy may lack changes of this interval."""

LOOK_S: Final = 60.0
"""Longest interval between two comparisons of the copy with the metastore; a change notification starts one earlier."""

OTHERS_MS: Final = int(1000 * (LOOK_S - INTERVAL_S))
"""After this time documents beside the records are read again, even if nothing was announced."""


class MetastoreCopy(NamedTuple):
    """The documents of one cluster's metastore, by path below its base, as they were at `at_ms` (wall clock)."""

    cluster_uuid: bytes
    at_ms: int
    documents: Mapping[str, bytes]

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions with a record in the copy."""
        return frozenset(int(p.removeprefix("/p/")) for p in self.documents if p.startswith("/p/"))


# -- keeping ----------------------------------------------------------------------------------------


async def read_documents(metastore: Metastore) -> dict[str, bytes]:
    """All documents that belong in a copy. Raises Unavailable, and IsthmusError for an unreadable document."""
    return _joined(await _read_records(metastore), await _read_others(metastore))


async def _read_records(metastore: Metastore) -> dict[str, bytes]:
    return {f"{RECORDS_PATH}/{number}": encode_record(record) for number, record in (await metastore.records()).items()}


async def _read_others(metastore: Metastore) -> dict[str, bytes]:
    """All documents beside the records, one after the other."""
    found: dict[str, bytes] = {}
    level = [f"/{name}" for name in await metastore.children("") if name not in NOT_COPIED]
    for _ in range(DEPTH_MAX):
        below: list[str] = []
        for path in level:
            value = await metastore.get(path)
            if value is not None and value.value:
                found[path] = value.value
            below += [f"{path}/{name}" for name in await metastore.children(path)]
        level = below
    return found


def _joined(records: Mapping[str, bytes], others: Mapping[str, bytes]) -> dict[str, bytes]:
    return dict(sorted({**records, **others}.items()))


def load_copy(directory: Path) -> MetastoreCopy | None:
    """The copy in a data directory, None where there is none. The directory need not be locked. Raises Corruption,
    LocalFault."""
    raw = SlotFile(directory, NAME).read()
    if raw is None:
        return None
    if not isinstance(raw, dict) or raw.get("version") != VERSION:
        raise Corruption(f"{directory / NAME}.* is not of version {VERSION}: is it of a newer Isthmus?")
    return MetastoreCopy(raw["cluster_uuid"], raw["at_ms"], raw["documents"])


class CopyKeeper:
    """Keeps a data directory's copy up to date while the node runs."""

    def __init__(self, metastore: Metastore, directory: Path, cluster_uuid: bytes, time: TimeSource) -> None:
        self._metastore = metastore
        self._directory = directory
        self._cluster_uuid = cluster_uuid
        self._time = time
        self._hinted = asyncio.Event()
        self._others: Mapping[str, bytes] = {}
        """The documents beside the records, as they were last read."""
        self._others_due = True
        """One of them may have changed since."""
        self._others_at_ms = 0
        """When they were read."""
        self._slots = SlotFile(directory, NAME)
        self._kept: MetastoreCopy | None = None
        self._task: asyncio.Task[None] | None = None
        self._problem = ""

    def start(self) -> None:
        """Start the copy task; a damaged copy is replaced."""
        try:
            self._slots.read()  # so that the next write goes to the older slot
            self._kept = load_copy(self._directory)
        except IsthmusError as error:
            log.warning("metastore_copy.unread", error=str(error))
        self._metastore.watch(self._hint)
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Stop the copy task; a write under way is finished."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _hint(self, path: str) -> None:
        if path == RECORDS_PATH or path.startswith(f"{RECORDS_PATH}/"):
            self._hinted.set()
        elif path.split("/")[1:2] not in ([name] for name in NOT_COPIED):
            self._others_due = True
            self._hinted.set()

    async def _keep(self) -> None:
        while True:
            self._hinted.clear()
            try:
                await self.copy()
            except (Unavailable, Ambiguous, IsthmusError) as error:
                self._warn(str(error))
            except Exception as error:  # the next look may succeed
                unforeseen.exception("metastore.copy_failed", error)
            await asyncio.sleep(INTERVAL_S)
            try:
                async with asyncio.timeout(LOOK_S - INTERVAL_S):
                    await self._hinted.wait()
            except TimeoutError:
                pass

    async def _known_others(self) -> Mapping[str, bytes]:
        """The documents beside the records. They are read only if one may have changed: records change with each node
        that comes or goes, and a cluster of hundreds of nodes has hundreds of other documents, read one by one."""
        now_ms = self._time.now_ms()
        announced = self._task is not None
        if not announced or self._others_due or now_ms >= self._others_at_ms + OTHERS_MS:
            self._others_due = False  # before the read: what is announced from here on may not be in it
            try:
                self._others = await _read_others(self._metastore)
            except BaseException:
                self._others_due = True
                raise
            self._others_at_ms = now_ms
        return self._others

    async def copy(self) -> None:
        """Write a new copy now, if any document differs from the last one."""
        documents = _joined(await _read_records(self._metastore), await self._known_others())
        kept = self._kept
        if kept is not None and kept.cluster_uuid == self._cluster_uuid:
            if kept.documents == documents:
                return
            found = {path for path in documents if path.startswith("/p/")}
            forgotten = sorted(path for path in kept.documents if path.startswith("/p/") and path not in found)
            if forgotten:
                self._warn(
                    f"the metastore lost {len(forgotten)} records (such as {forgotten[0]}): the old copy is kept"
                )
                return
        size_bytes = sum(len(path) + len(value) + 16 for path, value in documents.items())
        if size_bytes > COPY_BYTES_MAX:
            self._warn(f"the metastore's documents have {size_bytes} bytes, a copy at most {COPY_BYTES_MAX}")
            return
        copied = MetastoreCopy(self._cluster_uuid, self._time.wall_ms(), documents)
        value = {"version": VERSION, **copied._asdict()}
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._slots.write, value))
        self._kept, self._problem = copied, ""

    def _warn(self, problem: str) -> None:
        """Log a problem once, until another one or none is found."""
        if problem != self._problem:
            self._problem = problem
            log.warning("metastore_copy.not_written", error=problem)


# -- adopting ---------------------------------------------------------------------------------------


SET_BY_OPERATORS: Final = (
    "options, properties, drained nodes, queues that were registered or delisted, owners and gaps of queues, "
    "suspensions and limits of queues and sinks"
)


DEFAULT_LOST: Final = (
    "the bucket type default: nodes create it again when they start, by [replication] in their files, and it must have "
    "as many partitions as before; replicas on nodes that are not assigned them are deleted after "
    'replication.removed_copy_grace: set it to "720h" in all files first'
)


class Adoption(NamedTuple):
    """The writes of an adoption, and the state that it cannot restore."""

    cluster_uuid: bytes
    found_uuid: str
    """The uuid in the metastore now, "" for none."""
    as_of_ms: int | None
    """When the copy was made, None where there is none."""
    documents: Mapping[str, bytes]
    bucket_types: Mapping[str, int]
    """Bucket type -> partitions whose records are restored."""
    lost: tuple[str, ...]
    """One sentence for each thing that is lost or doubtful."""


async def plan_adoption(
    metastore: Metastore, identity: Mapping[str, Any], copy: MetastoreCopy | None, *, node: str, by: str
) -> Adoption:
    """The writes that restore an empty metastore for the cluster of `identity`, the identity of a data directory.

    Raises BadInput if the metastore is not empty, NotReady if it cannot be reached."""
    cluster_uuid: bytes = identity["cluster_uuid"]
    held: Mapping[int, Any] = identity["partitions"]
    if copy is not None and copy.cluster_uuid != cluster_uuid:
        copy = None
    documents = {} if copy is None else dict(copy.documents)
    records: dict[int, PartitionRecord] = {}
    for number in () if copy is None else copy.partitions:
        records[number] = _overtaken(decode_record(documents[f"/p/{number}"], 0), held.get(number), node, by)
        documents[f"/p/{number}"] = encode_record(records[number])
    documents[GEN_PATH] = str(_gen_above(identity, documents.get(GEN_PATH))).encode()
    if records:  # else the bucket type default is created again, by the ids that its replicas have
        counter = documents.get(PARTITIONS_COUNTER.path)
        documents[PARTITIONS_COUNTER.path] = _partitions_above({*records, *held}, counter)
    found = await _refused_unless_empty(metastore, cluster_uuid, records)
    types: dict[str, int] = {}
    for record in records.values():
        types[record.bucket_type] = types.get(record.bucket_type, 0) + 1
    lost = _lost(copy, sorted(held.keys() - records.keys()))
    at_ms = None if copy is None else copy.at_ms
    return Adoption(cluster_uuid, found, at_ms, documents, dict(sorted(types.items())), lost)


async def adopt(metastore: Metastore, adoption: Adoption) -> None:
    """Restore the documents, the uuid last, so that no node accepts a half-restored metastore.

    May be repeated after a failure. Raises NotReady, BadInput."""
    try:
        for path, value in [*adoption.documents.items(), (UUID_PATH, adoption.cluster_uuid.hex().encode())]:
            there = await metastore.get(path)
            if there is None or there.value != value:
                await metastore.put(path, value, None if there is None else there.version)
    except (Unavailable, Ambiguous) as error:
        raise NotReady(f"the metastore does not answer: {error}; repeat the command") from error
    except VersionConflict as error:
        raise BadInput(
            f"another process writes to the metastore: stop the nodes and repeat the command ({error})"
        ) from error


def _overtaken(record: PartitionRecord, held: Any, node: str, by: str) -> PartitionRecord:
    epoch = max(1, record.epoch, held[1] if held else 0)
    return replace(
        record,
        status=PartitionStatus.OFFLINE,
        leader=None,
        candidate=None,
        tried=frozenset(),
        overtaken=epoch,
        reason=f"metastore-rollback: adopted by {by} from the copy of {node}: isthmus cluster reseed",
    )


def _gen_above(identity: Mapping[str, Any], copied: bytes | None) -> int:
    """A gen above all that were ever allocated: the maximum of the identity's and the copy's, plus a margin."""
    known = [int(identity.get("spare", 0)), *(int(found[0]) for found in identity["partitions"].values())]
    for name in ("condemned", "left"):
        known += [int(found[0]) for found in identity.get(name, {}).values()]
    if copied is not None:
        try:
            known.append(int(copied))
        except ValueError:
            raise CodecError(f"{GEN_PATH} of the copy is not a number: {copied!r:.80}") from None
    return max(known) + ID_MARGIN


def _partitions_above(known: set[int], copied: bytes | None) -> bytes:
    """The counter of partition ids above all that were ever given: those that are known, and a margin (R-DOT)."""
    found = PARTITIONS_COUNTER.decode(None if copied is None else Versioned(copied, 0))
    return PARTITIONS_COUNTER.encode(StoredCounter(max(found.next, max(known) + 1) + ID_MARGIN))


async def _refused_unless_empty(
    metastore: Metastore, cluster_uuid: bytes, records: Mapping[int, PartitionRecord]
) -> str:
    """The uuid in the metastore, "" for none. Raises BadInput if the metastore is in use."""
    try:
        uuid = await metastore.get(UUID_PATH)
        live, there = await metastore.registrations(), await metastore.records()
    except (Unavailable, Ambiguous) as error:
        raise NotReady(f"the metastore does not answer: {error}") from error
    found = "" if uuid is None else uuid.value.decode("ascii", "replace")
    whose = "of this cluster already" if found == cluster_uuid.hex() else f"of another cluster ({found or 'no uuid'})"
    if live:
        raise BadInput(f"the metastore is {whose}, and {', '.join(sorted(live))} use it: nothing is to be adopted")
    begun = all(n in records and _alike(r, records[n]) for n, r in there.items())  # by an adoption that did not finish
    if there and not (begun and found != cluster_uuid.hex()):
        raise BadInput(f"the metastore is {whose}, and has {len(there)} partition records: nothing is to be adopted")
    return found


def _alike(one: PartitionRecord, other: PartitionRecord) -> bool:
    """Whether both records come from an adoption, possibly by different nodes."""
    return one.overtaken > 0 and replace(one, reason="", overtaken=1) == replace(other, reason="", overtaken=1)


def _lost(copy: MetastoreCopy | None, without_record: list[int]) -> tuple[str, ...]:
    if copy is None:
        numbers = _some(without_record)
        return (
            "this directory has no copy of the metastore's documents (another node's may): all of them are lost",
            f"no record is written for the partitions held here ({numbers})",
            DEFAULT_LOST,
            "bucket types other than default: their data stays in the data directories, and no command can read it",
            f"{SET_BY_OPERATORS}: set them again",
        )
    since = "since this directory's node last ran (of a restored one: since its backup)"
    lost = [
        f"changes made {since}, to bucket types, replica assignments, {SET_BY_OPERATORS}",
        "the ISRs: no leader is elected before `isthmus cluster reseed`, which compares the replicas of all nodes",
    ]
    if without_record:
        lost.append(
            f"records of partitions {_some(without_record)}, of which this node holds replicas: they were created "
            "after the copy was made, and no command can read their data"
        )
    return tuple(lost)


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "") if numbers else "none"


def check_known(directory: Path, identity: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The identity of a data directory that belongs to a cluster. Raises LocalFault for any other."""
    if identity is None or not identity.get("cluster_uuid"):
        raise LocalFault(f"{directory} belongs to no cluster: no node has used it, so nothing can be adopted by it")
    return identity
