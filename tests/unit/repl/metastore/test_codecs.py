"""Laws of the records' bytes: canonical, and refused when they are anything else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.metastore.codecs import (
    RECORD_BYTES_MAX,
    decode_record,
    decode_registration,
    encode_record,
    encode_registration,
)
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from isthmus.repl.model.vclock import MAX_EPOCH

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
counts = st.integers(0, (1 << 63) - 1)
members = st.builds(Member, names, counts)
incarnations = st.builds(Incarnation, names, counts)
records = (
    st.builds(
        PartitionRecord,
        partition=st.integers(0, (1 << 32) - 1),
        bucket_type=names,
        index=st.integers(0, 11),
        partition_count=st.just(12),
        replicas=st.lists(names, min_size=1, max_size=4, unique=True).map(tuple),
        epoch=st.integers(0, MAX_EPOCH),
        status=st.sampled_from(PartitionStatus),
        leader=st.none() | incarnations,
        candidate=st.none() | incarnations,
        isr=st.frozensets(members, max_size=4),
        elr=st.frozensets(members, max_size=4),
        min_isr=st.integers(1, 9),
        tried=st.frozensets(names, max_size=3),
        preferred=st.none() | names,
        lineage=counts,
        overtaken=st.just(0) | st.integers(1, MAX_EPOCH),
        reason=texts,
    )
    .flatmap(
        lambda record: st.integers(0, len(record.replicas) - 1).map(
            lambda cut: replace(
                record, adding=record.replicas[1 : 1 + cut // 2], removing=record.replicas[1 + cut // 2 : cut]
            )
        )
    )
    .flatmap(
        lambda record: st.sampled_from(((), record.replicas[:1], record.replicas)).map(
            lambda before: replace(record, before=before if record.adding or record.removing else ())
        )
    )
)

GOOD = PartitionRecord(0, "default", 0, 12, ("n1",), isr=frozenset({Member("n1", 1), Member("n2", 2)}))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(records)
def test_a_record_survives_its_bytes(record: PartitionRecord) -> None:
    """Decoding what was encoded gives the record, and encoding that gives the same bytes."""
    data = encode_record(record)
    again = decode_record(data, 7)
    assert again == record
    assert again.version == 7
    assert encode_record(again) == data


def test_a_record_is_written_in_the_oldest_form_that_tells_all_of_it() -> None:
    """Programs of the version before read what this one writes, until the metastore has gone back behind a record; that
    they refuse, instead of electing by it."""
    assert b'"v":2,' in encode_record(GOOD)
    assert b'"v":3,' in encode_record(replace(GOOD, overtaken=4))
    changing = replace(GOOD, replicas=("n1", "n2", "n3"), adding=("n3",), removing=("n2",), before=("n1",))
    assert b'"v":4,' in encode_record(changing)
    assert b'"v":2,' in encode_record(replace(changing, before=()))
    for wrong in (("n1", "n1"), ("n9",), ()):
        raw = json.loads(encode_record(changing)) | {"before": list(wrong)}
        with pytest.raises(CodecError, match="before"):
            decode_record(json.dumps(raw).encode(), 1)
    with pytest.raises(CodecError, match="overtaken: 0 where at least 1 is needed"):
        decode_record(encode_record(replace(GOOD, overtaken=4)).replace(b'"overtaken":4', b'"overtaken":0'), 1)


def test_equal_records_have_equal_bytes() -> None:
    """Sets are written in one order, so an undecided write is repeated verbatim."""
    turned = replace(GOOD, isr=frozenset(sorted(GOOD.isr, reverse=True)))
    assert encode_record(turned) == encode_record(GOOD)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("v", 5), ("v", "1"), ("partition", -1), ("partition", True), ("partition", 1.5), ("bucket_type", ""),
        ("index", 12), ("partition_count", 0), ("replicas", []), ("replicas", ["n1", "n1"]), ("replicas", "n1"),
        ("epoch", 1 << 63), ("status", "asleep"), ("leader", ["n1"]), ("leader", "n1"), ("isr", [["n1", "1"]]),
        ("elr", None), ("min_isr", 0), ("preferred", 3), ("reason", None), ("extra", 1),
        ("partition", 1 << 32), ("partition_count", (1 << 20) + 1), ("epoch", 1 << 20), ("bucket_type", "\ud800"),
        ("replicas", ["\udfff"]), ("reason", "\ud800"),
    ],
)  # fmt: skip
def test_a_field_that_is_wrong_is_named(field: str, value: Any) -> None:
    """Every wrong field of a record is refused, and the message names it."""
    raw = json.loads(encode_record(GOOD))
    raw[field] = value
    with pytest.raises(CodecError, match=r"version" if field == "v" else field):
        decode_record(json.dumps(raw).encode(), 0)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"null", b"[" * 100_000, b" " * (RECORD_BYTES_MAX + 1)])
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    """Hostile bytes give an error, never a crash."""
    with pytest.raises(CodecError):
        decode_record(data, 0)
    with pytest.raises(CodecError):
        decode_registration(data, "n1", 1)


def test_a_missing_field_is_named() -> None:
    """A record without a field is refused by the field's name."""
    raw = json.loads(encode_record(GOOD))
    del raw["lineage"]
    with pytest.raises(CodecError, match="lineage is missing"):
        decode_record(json.dumps(raw).encode(), 0)


def test_a_registration_survives_its_bytes() -> None:
    """Node and inc come from outside the bytes, all else from them."""
    registration = Registration("n1", 9, False, "http://h:1", "", {4: 1, 2: 7})
    assert decode_registration(encode_registration(registration), "n1", 9) == registration
    with pytest.raises(CodecError, match="gens"):
        decode_registration(encode_registration(registration).replace(b"[2,7]", b'["2",7]'), "n1", 9)
