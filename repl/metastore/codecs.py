"""The bytes of the metastore's small records: canonical JSON, decoded with suspicion.

Equal records have equal bytes (sets are written sorted), so an undecided write can be repeated verbatim
(docs/protocol.md R-AMBIG). JSON, because an operator will one day read them with ZooKeeper's own shell. Each
carries the version of its form; unknown fields are refused, since whoever rewrites the record would lose
them. Registrations of the form before are read as well: after an update the old process's may be there until its
session ends. Pure; who reads and writes is `repl.metastore.metastore`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

from isthmus.repl.model.errors import CodecError, Unreadable
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from isthmus.repl.model.vclock import MAX_EPOCH

FORM_VERSION: Final = 1

RECORD_FORM_VERSION: Final = 4
"""Form 1 had no adding and removing, form 2 no overtaken, form 3 no before. The last two are nearly always empty, and
the oldest form that holds a record is written, which programs of the versions before read."""

REGISTRATION_FORM_VERSION: Final = 2
"""Form 1 had no spare_gen, cluster_address, id, rack."""

RECORD_BYTES_MAX: Final = 512 * 1000
"""Largest value that is written or parsed. ZooKeeper drops the connection at 1 MB (jute.maxbuffer), path and
framing included; half of it leaves room. A partition record has about 400 bytes."""

PARTITION_MAX: Final = (1 << 32) - 1
"""Largest partition id: logs, rows and clocks give it four bytes."""

COMMIT_BYTES_MAX: Final = 1000 * 1000
"""Largest request that writes several values at once, by the same limit of ZooKeeper (1,048,575 bytes). The most
partitions that a cluster is founded with, 1,024 of three replicas, take 0.5 MB; with names of 64 letters 0.9 MB."""

OP_BYTES: Final = 64
"""What one operation of such a request takes besides path and value (48 for a creation), rounded up."""

T = TypeVar("T")


def encode_record(record: PartitionRecord) -> bytes:
    """Canonical bytes of `record`, without its metastore version."""
    late: dict[str, object] = {}
    if record.overtaken or record.before:
        late["overtaken"] = record.overtaken
    if record.before:
        late["before"] = list(record.before)
    return _dump(
        {
            "v": 2 + len(late),
            "partition": record.partition,
            "bucket_type": record.bucket_type,
            "index": record.index,
            "partition_count": record.partition_count,
            "replicas": list(record.replicas),
            "epoch": record.epoch,
            "status": str(record.status),
            "leader": None if record.leader is None else list(record.leader),
            "candidate": None if record.candidate is None else list(record.candidate),
            "isr": sorted(record.isr),
            "elr": sorted(record.elr),
            "min_isr": record.min_isr,
            "tried": sorted(record.tried),
            "preferred": record.preferred,
            "lineage": record.lineage,
            "adding": list(record.adding),
            "removing": list(record.removing),
            **late,
            "reason": record.reason,
        }
    )


def decode_record(data: bytes, version: int) -> PartitionRecord:
    """The record in `data`, whose metastore version is `version`. Raises CodecError."""
    fields = _Fields(data, "partition record", RECORD_FORM_VERSION, older=1)
    record = PartitionRecord(
        partition=fields.take("partition", _to(PARTITION_MAX)),
        bucket_type=fields.take("bucket_type", _name),
        index=fields.take("index", _count),
        partition_count=fields.take("partition_count", _share),
        replicas=tuple(fields.take("replicas", _list_of(_name))),
        epoch=fields.take("epoch", _to(MAX_EPOCH)),
        status=fields.take("status", PartitionStatus),
        leader=fields.take("leader", _optional(_incarnation)),
        candidate=fields.take("candidate", _optional(_incarnation)),
        isr=frozenset(fields.take("isr", _list_of(_member))),
        elr=frozenset(fields.take("elr", _list_of(_member))),
        min_isr=fields.take("min_isr", _positive),
        tried=frozenset(fields.take("tried", _list_of(_name))),
        preferred=fields.take("preferred", _optional(_name)),
        lineage=fields.take("lineage", _count),
        adding=tuple(fields.take("adding", _list_of(_name), since=2, before=[])),
        removing=tuple(fields.take("removing", _list_of(_name), since=2, before=[])),
        overtaken=fields.take("overtaken", _to(MAX_EPOCH) if fields.form > 3 else _epoch_been_in, since=3, before=0),
        before=tuple(fields.take("before", _list_of(_name), since=4, before=[])),
        reason=fields.take("reason", _text),
        version=version,
    )
    fields.finish()
    if record.index >= record.partition_count:
        raise CodecError(f"not a partition record: index {record.index} of {record.partition_count} partitions")
    if not record.replicas or len(set(record.replicas)) != len(record.replicas):
        raise CodecError("not a partition record: replicas are none or named twice")
    changing = (*record.adding, *record.removing)
    if len(set(changing)) != len(changing) or not set(changing) <= set(record.replicas) or not record.staying:
        raise CodecError("not a partition record: adding and removing overlap, leave none, or are no replicas")
    if fields.form == RECORD_FORM_VERSION and not (changing and record.before):
        raise CodecError("not a partition record: before is named without a change under way, or is empty")
    if len(set(record.before)) != len(record.before) or not set(record.before) <= set(record.replicas):
        raise CodecError("not a partition record: before names a node twice, or one that is no replica")
    return record


def encode_registration(registration: Registration) -> bytes:
    """Canonical bytes of `registration`. Its inc is not among them: the metastore gives it."""
    return _dump(
        {
            "v": REGISTRATION_FORM_VERSION,
            "active": registration.active,
            "http_url": registration.http_url,
            "admin_url": registration.admin_url,
            "cluster_address": registration.cluster_address,
            "id": registration.id,
            "rack": registration.rack,
            "spare_gen": registration.spare_log_id,
            "gens": _pairs(registration.log_ids),
        }
    )


def decode_registration(data: bytes, node: str, inc: int) -> Registration:
    """The registration of `node` in `data`, made under the creation zxid `inc`. Raises CodecError."""
    fields = _Fields(data, "registration", REGISTRATION_FORM_VERSION, older=1)
    registration = Registration(
        node=node,
        session_id=inc,
        active=fields.take("active", _flag),
        http_url=fields.take("http_url", _text),
        admin_url=fields.take("admin_url", _text),
        log_ids=dict(fields.take("gens", _list_of(_gen))),
        spare_log_id=fields.take("spare_gen", _count, since=2, before=0),
        cluster_address=fields.take("cluster_address", _address, since=2, before=""),
        id=fields.take("id", _count, since=2, before=0),
        rack=fields.take("rack", _text, since=2, before=""),
    )
    fields.finish()
    return registration


@dataclass(frozen=True, slots=True)
class LogIdentityRecord:
    """What a conditional write goes by that is to name a node's copy: kept persistently, so that its version moves
    with every change and never begins anew, as that of an ephemeral does in the next session."""

    active: bool
    spare_gen: int
    gens: Mapping[int, int]

    def gen_of(self, partition: int) -> int:
        """The gen of the node's copy of `partition`, be it there or still to be made."""
        return self.gens.get(partition, self.spare_gen)


def encode_standing(registration: Registration) -> bytes:
    """Canonical bytes of what a registration's persistent half says."""
    return _dump(
        {
            "v": FORM_VERSION,
            "active": registration.active,
            "spare_gen": registration.spare_log_id,
            "gens": _pairs(registration.log_ids),
        }
    )


def decode_standing(data: bytes) -> LogIdentityRecord:
    """The standing in `data`. Raises CodecError."""
    fields = _Fields(data, "standing", FORM_VERSION)
    standing = LogIdentityRecord(
        active=fields.take("active", _flag),
        spare_gen=fields.take("spare_gen", _count),
        gens=dict(fields.take("gens", _list_of(_gen))),
    )
    fields.finish()
    return standing


def _pairs(gens: Mapping[int, int]) -> list[list[int]]:
    return [[partition, gen] for partition, gen in sorted(gens.items())]


def parsed(path: str, data: bytes, parse: Callable[[bytes], T]) -> T:
    """What `parse` makes of the bytes at `path`. Raises Unreadable, which names it: nobody else writes there."""
    try:
        return parse(data)
    except (ValueError, CodecError) as error:
        raise Unreadable(f"{path} in the metastore: {error}") from error


def _dump(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


class _Fields:
    """A JSON object whose fields are taken one by one, each checked; what is left over is a fault."""

    def __init__(self, data: bytes, noun: str, newest: int, older: int | None = None) -> None:
        """Forms from `older` (None: `newest` alone) to `newest` are read."""
        self._noun = noun
        if len(data) > RECORD_BYTES_MAX:
            self._refuse(f"{len(data)} bytes, more than {RECORD_BYTES_MAX}")
        try:
            raw = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CodecError(f"not a {noun}: {error}") from error
        if type(raw) is not dict:
            self._refuse("no object at the top")
        self._raw: dict[str, object] = raw
        version = self._raw.pop("v", None)
        if type(version) is not int or not (newest if older is None else older) <= version <= newest:
            raise CodecError(f"{noun} of version {version!r:.80}, this program reads {newest}")
        self.form = version

    def _refuse(self, why: str) -> NoReturn:
        raise CodecError(f"not a {self._noun}: {why}")

    def take(self, field: str, check: Callable[[Any], T], *, since: int = 0, before: T | None = None) -> T:
        """The field, checked. Forms older than `since` have it not; there it is `before`."""
        if self.form < since:
            assert before is not None
            return before
        if field not in self._raw:
            self._refuse(f"{field} is missing")
        try:
            return check(self._raw.pop(field))
        except ValueError as error:
            raise CodecError(f"not a {self._noun}: {field}: {error}") from error

    def finish(self) -> None:
        if self._raw:
            self._refuse(f"unknown fields {', '.join(sorted(self._raw))}")


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.80} is no whole number from 0")
    return value


def _positive(value: object) -> int:
    if _count(value) == 0:
        raise ValueError("0 where at least 1 is needed")
    return _count(value)


def _to(largest: int) -> Callable[[object], int]:
    def checked(value: object) -> int:
        if _count(value) > largest:
            raise ValueError(f"{value} where at most {largest} is right")
        return _count(value)

    return checked


def _share(value: object) -> int:
    """A partition has one segment at least."""
    return _to(SEGMENT_COUNT)(_positive(value))


def _epoch_been_in(value: object) -> int:
    return _to(MAX_EPOCH)(_positive(value))


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r:.80} is neither true nor false")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r:.80} is no text")
    value.encode()  # half of a surrogate pair is none: it could be told to nobody, by wire, log or answer
    return value


def _name(value: object) -> str:
    if not _text(value):
        raise ValueError("an empty name")
    return _text(value)


def _address(value: object) -> str:
    host, _, port = _text(value).rpartition(":")
    if value and not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError(f"{value!r:.80} is not HOST:PORT")
    return _text(value)


def _optional(check: Callable[[object], T]) -> Callable[[object], T | None]:
    return lambda value: None if value is None else check(value)


def _list_of(check: Callable[[object], T]) -> Callable[[object], list[T]]:
    def checked(value: object) -> list[T]:
        if type(value) is not list:
            raise ValueError(f"{value!r:.80} is no list")
        return [check(item) for item in value]

    return checked


def _pair(value: object) -> list[object]:
    if type(value) is not list or len(value) != 2:
        raise ValueError(f"{value!r:.80} is no pair")
    return value


def _member(value: object) -> Member:
    node, gen = _pair(value)
    return Member(_name(node), _count(gen))


def _incarnation(value: object) -> Incarnation:
    node, inc = _pair(value)
    return Incarnation(_name(node), _count(inc))


def _gen(value: object) -> tuple[int, int]:
    partition, gen = _pair(value)
    return _count(partition), _count(gen)
