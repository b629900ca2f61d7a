"""The bytes of the metastore's small records: canonical JSON, decoded with suspicion.

Equal records have equal bytes (sets are written sorted), so an undecided write can be repeated verbatim
(docs/protocol.md R-AMBIG). JSON, because an operator will one day read them with ZooKeeper's own shell. Each record
carries the version of its form. Unknown fields are refused, since rewriting the record would lose them. Older forms of
records and registrations are read, too: after an update, those of the old process may be there until its session ends.
Pure; `repl.metastore.metastore` reads and writes the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from isthmus.repl.model.errors import CodecError, Unreadable
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from isthmus.repl.model.vclock import MAX_EPOCH

LOG_IDENTITY_FORM_VERSION: Final = 1

RECORD_FORM_VERSION: Final = 5
"""Form 1 had no adding and removing, form 2 no overtaken, form 3 no before. The last two are nearly always empty. A
record is written in the oldest form that holds it, so that programs of earlier versions can read it."""

REGISTRATION_FORM_VERSION: Final = 2
"""Form 1 had no spare_gen, cluster_address, id, rack."""

RECORD_BYTES_MAX: Final = 512 * 1000
"""Largest value that is written or parsed. ZooKeeper drops the connection at 1 MB (jute.maxbuffer), path and
framing included; half of it leaves a margin. A partition record has about 400 bytes."""

PARTITION_MAX: Final = (1 << 32) - 1
"""Largest partition id: logs, rows and clocks give it four bytes."""

COMMIT_BYTES_MAX: Final = 1000 * 1000
"""Largest request that writes several values at once, by the same limit of ZooKeeper (1,048,575 bytes). The most
partitions that a cluster is founded with, 1,024 of three replicas, take 0.5 MB; with names of 64 letters 0.9 MB."""

OP_BYTES: Final = 64
"""Size of one operation of such a request without path and value (48 for a creation), rounded up."""

COUNT_MAX: Final = (1 << 63) - 1

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Positive = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Epoch = Annotated[int, Meta(ge=0, le=MAX_EPOCH)]
PartitionId = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]
PartitionCount = Annotated[int, Meta(ge=1, le=SEGMENT_COUNT)]
Name = Annotated[str, Meta(min_length=1)]

T = TypeVar("T")
F = TypeVar("F", bound="_Form")


class _Form(Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON object with the version of its form in front."""

    v: int


class _RecordForm(_Form, kw_only=True):
    partition: PartitionId
    bucket_type: Name
    index: Count
    partition_count: PartitionCount
    replicas: tuple[Name, ...]
    epoch: Epoch
    status: PartitionStatus
    leader: tuple[Name, Count] | None
    candidate: tuple[Name, Count] | None
    isr: tuple[tuple[Name, Count], ...]
    elr: tuple[tuple[Name, Count], ...]
    min_isr: Positive
    tried: tuple[Name, ...]
    preferred: Name | None
    lineage: Count
    adding: tuple[Name, ...] | UnsetType = UNSET
    removing: tuple[Name, ...] | UnsetType = UNSET
    overtaken: Epoch | UnsetType = UNSET
    before: tuple[Name, ...] | UnsetType = UNSET
    incarnation: Positive | UnsetType = UNSET
    reason: str


class _RegistrationForm(_Form, kw_only=True):
    active: bool
    http_url: str
    admin_url: str
    cluster_address: str | UnsetType = UNSET
    id: Count | UnsetType = UNSET
    rack: str | UnsetType = UNSET
    spare_gen: Count | UnsetType = UNSET
    gens: tuple[tuple[Count, Count], ...]


class _LogIdentityForm(_Form, kw_only=True):
    active: bool
    spare_gen: Count
    gens: tuple[tuple[Count, Count], ...]


def encode_record(record: PartitionRecord) -> bytes:
    """Canonical bytes of `record`, without its metastore version."""
    return msgspec.json.encode(
        _RecordForm(
            v=5 if record.incarnation else 4 if record.before else 3 if record.overtaken else 2,
            partition=record.partition,
            bucket_type=record.bucket_type,
            index=record.index,
            partition_count=record.partition_count,
            replicas=record.replicas,
            epoch=record.epoch,
            status=record.status,
            leader=record.leader,
            candidate=record.candidate,
            isr=tuple(sorted(record.isr)),
            elr=tuple(sorted(record.elr)),
            min_isr=record.min_isr,
            tried=tuple(sorted(record.tried)),
            preferred=record.preferred,
            lineage=record.lineage,
            adding=record.adding,
            removing=record.removing,
            overtaken=record.overtaken if record.overtaken or record.before or record.incarnation else UNSET,
            before=record.before if record.before or record.incarnation else UNSET,
            incarnation=record.incarnation or UNSET,
            reason=record.reason,
        )
    )


def decode_record(data: bytes, version: int) -> PartitionRecord:
    """The record in `data`, whose metastore version is `version`. Raises CodecError."""
    noun = "partition record"
    form = _decode(data, _RecordForm, noun, RECORD_FORM_VERSION, oldest=1)
    _check_fields_of_form(form, noun, {"adding": 2, "removing": 2, "overtaken": 3, "before": 4, "incarnation": 5})
    record = PartitionRecord(
        partition=form.partition,
        bucket_type=form.bucket_type,
        index=form.index,
        partition_count=form.partition_count,
        replicas=form.replicas,
        epoch=form.epoch,
        status=form.status,
        leader=None if form.leader is None else Incarnation(*form.leader),
        candidate=None if form.candidate is None else Incarnation(*form.candidate),
        isr=frozenset(Member(*member) for member in form.isr),
        elr=frozenset(Member(*member) for member in form.elr),
        min_isr=form.min_isr,
        tried=frozenset(form.tried),
        preferred=form.preferred,
        lineage=form.lineage,
        adding=form.adding or (),
        removing=form.removing or (),
        overtaken=form.overtaken or 0,
        before=form.before or (),
        incarnation=form.incarnation or 0,
        reason=form.reason,
        version=version,
    )
    if record.index >= record.partition_count:
        raise CodecError(f"not a partition record: index {record.index} of {record.partition_count} partitions")
    if not record.replicas or len(set(record.replicas)) != len(record.replicas):
        raise CodecError("not a partition record: replicas are none or named twice")
    changing = (*record.adding, *record.removing)
    if len(set(changing)) != len(changing) or not set(changing) <= set(record.replicas) or not record.staying:
        raise CodecError("not a partition record: adding and removing overlap, leave none, or are not replicas")
    if form.v == 3 and not record.overtaken:
        raise CodecError("not a partition record: overtaken: 0 where at least 1 is needed")
    if (form.v == 4 and not record.before) or (record.before and not changing):
        raise CodecError("not a partition record: before is named without a change under way, or is empty")
    if len(set(record.before)) != len(record.before) or not set(record.before) <= set(record.replicas):
        raise CodecError("not a partition record: before names a node twice, or one that is not a replica")
    return record


def encode_registration(registration: Registration) -> bytes:
    """Canonical bytes of `registration`, without its session id, which the metastore assigns."""
    return msgspec.json.encode(
        _RegistrationForm(
            v=REGISTRATION_FORM_VERSION,
            active=registration.active,
            http_url=registration.http_url,
            admin_url=registration.admin_url,
            cluster_address=registration.cluster_address,
            id=registration.id,
            rack=registration.rack,
            spare_gen=registration.spare_log_id,
            gens=tuple(sorted(registration.log_ids.items())),
        )
    )


def decode_registration(data: bytes, node: str, session_id: int) -> Registration:
    """The registration of `node` in `data`, made under the creation zxid `session_id`. Raises CodecError."""
    noun = "registration"
    form = _decode(data, _RegistrationForm, noun, REGISTRATION_FORM_VERSION, oldest=1)
    _check_fields_of_form(form, noun, {"cluster_address": 2, "id": 2, "rack": 2, "spare_gen": 2})
    address = form.cluster_address or ""
    host, _, port = address.rpartition(":")
    if address and not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise CodecError(f"not a registration: cluster_address: {address!r:.80} is not HOST:PORT")
    return Registration(
        node=node,
        session_id=session_id,
        active=form.active,
        http_url=form.http_url,
        admin_url=form.admin_url,
        log_ids=dict(form.gens),
        spare_log_id=form.spare_gen or 0,
        cluster_address=address,
        id=form.id or 0,
        rack=form.rack or "",
    )


@dataclass(frozen=True, slots=True)
class LogIdentityRecord:
    """The persistent half of a registration, on which a conditional write that names a node's copy is based.

    Persistent, so that its version rises with every change; the version of an ephemeral begins again in the next
    session."""

    active: bool
    spare_log_id: int
    log_ids: Mapping[int, int]

    def log_id_of(self, partition: int) -> int:
        """The log id of the node's copy of `partition`, existing or still to be made."""
        return self.log_ids.get(partition, self.spare_log_id)


def encode_log_identity(registration: Registration) -> bytes:
    """Canonical bytes of a registration's persistent half."""
    return msgspec.json.encode(
        _LogIdentityForm(
            v=LOG_IDENTITY_FORM_VERSION,
            active=registration.active,
            spare_gen=registration.spare_log_id,
            gens=tuple(sorted(registration.log_ids.items())),
        )
    )


def decode_log_identity(data: bytes) -> LogIdentityRecord:
    """The persistent half of a registration in `data`. Raises CodecError."""
    form = _decode(data, _LogIdentityForm, "log identity", LOG_IDENTITY_FORM_VERSION, oldest=LOG_IDENTITY_FORM_VERSION)
    return LogIdentityRecord(form.active, form.spare_gen, dict(form.gens))


def decode_at(path: str, data: bytes, decode: Callable[[bytes], T]) -> T:
    """`decode(data)`. Raises Unreadable, which names `path`, if it raises CodecError or ValueError."""
    try:
        return decode(data)
    except (ValueError, CodecError) as error:
        raise Unreadable(f"{path} in the metastore: {error}") from error


class _FormVersion(Struct):
    """The version of an object of any form."""

    v: Any = None


def _decode(data: bytes, form: type[F], noun: str, newest: int, *, oldest: int) -> F:
    """The JSON object in `data`, of a form from `oldest` to `newest`. Raises CodecError."""
    if len(data) > RECORD_BYTES_MAX:
        raise CodecError(f"not a {noun}: {len(data)} bytes, more than {RECORD_BYTES_MAX}")
    try:
        version = msgspec.json.decode(data, type=_FormVersion).v
        if type(version) is not int or not oldest <= version <= newest:
            raise CodecError(f"{noun} of version {version!r:.80}, this program reads {newest}")
        return msgspec.json.decode(data, type=form)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a {noun}: {error}") from error


def _check_fields_of_form(form: _Form, noun: str, since: Mapping[str, int]) -> None:
    """Raises CodecError unless `form` has exactly those fields of `since` that its version has."""
    for field, version in since.items():
        missing = getattr(form, field) is UNSET
        if missing and form.v >= version:
            raise CodecError(f"not a {noun}: {field} is missing")
        if not missing and form.v < version:
            raise CodecError(f"not a {noun}: unknown fields {field}")
