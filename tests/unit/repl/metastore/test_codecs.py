"""Laws of the records' encoding: canonical, and all other bytes are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.metastore.codecs import (
    RECORD_BYTES_MAX,
    decode_log_identity,
    decode_record,
    decode_registration,
    encode_log_identity,
    encode_record,
    encode_registration,
)
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from isthmus.repl.model.vclock import MAX_EPOCH
from tests.support.samples import share

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

PLAIN = PartitionRecord(3, "notes é", 3, 12, ("n1", "n2"), isr=frozenset({Member("n2", 1 << 40), Member("n1", 1)}))
PLAIN_BYTES = (
    '{"v":2,"partition":3,"bucket_type":"notes é","index":3,"partition_count":12,"replicas":["n1","n2"],"epoch":0,'
    '"status":"election","leader":null,"candidate":null,"isr":[["n1",1],["n2",1099511627776]],"elr":[],"min_isr":1,'
    '"tried":[],"preferred":null,"lineage":0,"adding":[],"removing":[],"reason":""}'
)
LED_BYTES = (
    '{"v":2,"partition":3,"bucket_type":"notes é","index":3,"partition_count":12,"replicas":["n1","n2"],"epoch":7,'
    '"status":"online","leader":["n1",1125899906842624],"candidate":null,"isr":[["n1",1],["n2",1099511627776]],'
    '"elr":[["n3",9]],"min_isr":2,"tried":["n1","n2"],"preferred":"n2","lineage":4,"adding":[],"removing":[],'
    r'"reason":"\"why\"\n\\ \u0001\u001f/"}'
)
GOLDEN_RECORDS = [
    (PLAIN, PLAIN_BYTES),
    (
        replace(
            PLAIN, epoch=7, status=PartitionStatus.ONLINE, leader=Incarnation("n1", 1 << 50), min_isr=2, lineage=4,
            elr=frozenset({Member("n3", 9)}), tried=frozenset({"n2", "n1"}), preferred="n2",
            reason='"why"\n\\ \x01\x1f/',
        ),
        LED_BYTES,
    ),
    (
        replace(PLAIN, status=PartitionStatus.CANDIDATE_FOUND, candidate=Incarnation("n2", 0), overtaken=5),
        PLAIN_BYTES.replace('"v":2', '"v":3')
        .replace('"status":"election"', '"status":"candidate-found"')
        .replace('"candidate":null', '"candidate":["n2",0]')
        .replace('"reason"', '"overtaken":5,"reason"'),
    ),
    (
        replace(PLAIN, replicas=("n1", "n2", "n3"), adding=("n3",), removing=("n2",), before=("n1", "n2")),
        PLAIN_BYTES.replace('"v":2', '"v":4')
        .replace('"replicas":["n1","n2"]', '"replicas":["n1","n2","n3"]')
        .replace('"adding":[],"removing":[]', '"adding":["n3"],"removing":["n2"],"overtaken":0,"before":["n1","n2"]'),
    ),
]  # fmt: skip
"""Records, and their bytes as earlier versions wrote them."""

GOOD = PartitionRecord(0, "default", 0, 12, ("n1",), isr=frozenset({Member("n1", 1), Member("n2", 2)}))


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(records)
def test_a_record_survives_its_bytes(record: PartitionRecord) -> None:
    """Decoding what was encoded gives the record, and encoding that gives the same bytes."""
    data = encode_record(record)
    again = decode_record(data, 7)
    assert again == record
    assert again.version == 7
    assert encode_record(again) == data


def test_a_record_is_written_in_the_oldest_format_that_holds_all_its_fields() -> None:
    """Programs of the previous version can read records of this one, until the metastore has gone back behind a record;
    they refuse such a record instead of electing by it."""
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


def test_a_record_of_an_incarnation_has_a_form_of_its_own() -> None:
    """R-ACTOR: earlier programs refuse such a record by its version, and read any other; it is read back whole, during
    a change of replicas and after one, and without an incarnation it is no such record."""
    assert json.loads(encode_record(GOOD))["v"] < 5
    changing = replace(GOOD, adding=GOOD.replicas[:1], before=GOOD.replicas[1:])
    for record in (GOOD, changing, replace(GOOD, overtaken=4)):
        made = replace(record, incarnation=(1 << 63) - 1)
        assert json.loads(encode_record(made))["v"] == 5
        assert decode_record(encode_record(made), GOOD.version) == made
    raw = json.loads(encode_record(replace(GOOD, incarnation=7)))
    for wrong in (0, -1, 1 << 63, "7", None):
        with pytest.raises(CodecError, match="incarnation"):
            decode_record(json.dumps(raw | {"incarnation": wrong}).encode(), 1)
    del raw["incarnation"]
    with pytest.raises(CodecError, match="incarnation is missing"):
        decode_record(json.dumps(raw).encode(), 1)


def test_equal_records_have_equal_bytes() -> None:
    """Sets are written in one order, so an undecided write is repeated verbatim."""
    turned = replace(GOOD, isr=frozenset(sorted(GOOD.isr, reverse=True)))
    assert encode_record(turned) == encode_record(GOOD)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("v", 6), ("v", "1"), ("partition", -1), ("partition", True), ("partition", 1.5), ("bucket_type", ""),
        ("index", 12), ("partition_count", 0), ("replicas", []), ("replicas", ["n1", "n1"]), ("replicas", "n1"),
        ("epoch", 1 << 63), ("status", "asleep"), ("leader", ["n1"]), ("leader", "n1"), ("isr", [["n1", "1"]]),
        ("elr", None), ("min_isr", 0), ("preferred", 3), ("reason", None), ("extra", 1),
        ("partition", 1 << 32), ("partition_count", (1 << 20) + 1), ("epoch", 1 << 20), ("bucket_type", "\ud800"),
        ("replicas", ["\udfff"]), ("reason", "\ud800"),
    ],
)  # fmt: skip
def test_a_field_that_is_wrong_is_named(field: str, value: Any) -> None:
    """Every wrong field of a record is refused, and the message names it. Half of a surrogate pair makes the text no
    JSON at all."""
    raw = json.loads(encode_record(GOOD))
    raw[field] = value
    surrogate = "\\ud" in json.dumps(value)
    with pytest.raises(
        CodecError, match="JSON is malformed|truncated" if surrogate else "version" if field == "v" else field
    ):
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
    with pytest.raises(CodecError, match="missing required field `lineage`"):
        decode_record(json.dumps(raw).encode(), 0)


def test_a_registration_survives_its_bytes() -> None:
    """The node's name and the session id come from outside the bytes, all else from them."""
    registration = Registration("n1", 9, False, "http://h:1", "", {4: 1, 2: 7})
    assert decode_registration(encode_registration(registration), "n1", 9) == registration
    with pytest.raises(CodecError, match="gens"):
        decode_registration(encode_registration(registration).replace(b"[2,7]", b'["2",7]'), "n1", 9)


@pytest.mark.parametrize(("record", "text"), GOLDEN_RECORDS)
def test_records_keep_the_bytes_of_earlier_versions(record: PartitionRecord, text: str) -> None:
    """Records are encoded to the bytes of earlier versions, and those are decoded."""
    assert encode_record(record) == text.encode()
    assert decode_record(text.encode(), 7) == record


def test_the_oldest_format_of_a_record_is_read() -> None:
    """Form 1 has neither adding nor removing; a form with fields of a later one is refused."""
    oldest = PLAIN_BYTES.replace('"v":2', '"v":1').replace('"adding":[],"removing":[],', "")
    assert decode_record(oldest.encode(), 7) == PLAIN
    with pytest.raises(CodecError, match="unknown fields adding"):
        decode_record(PLAIN_BYTES.replace('"v":2', '"v":1').encode(), 7)
    with pytest.raises(CodecError, match="removing is missing"):
        decode_record(PLAIN_BYTES.replace(',"removing":[]', "").encode(), 7)


def test_registrations_keep_the_bytes_of_earlier_versions() -> None:
    """Registrations are encoded to the bytes of earlier versions; form 1, without the later fields, is decoded."""
    registration = Registration("n1", 5, True, "http://h:1", "http://h:2", {4: 1, 2: 7}, 50, "h:9", 3, "räck")
    text = (
        '{"v":2,"active":true,"http_url":"http://h:1","admin_url":"http://h:2","cluster_address":"h:9","id":3,'
        '"rack":"räck","spare_gen":50,"gens":[[2,7],[4,1]]}'
    )
    assert encode_registration(registration) == text.encode()
    assert decode_registration(text.encode(), "n1", 5) == registration
    oldest = '{"v":1,"active":true,"http_url":"http://h:1","admin_url":"http://h:2","gens":[[2,7],[4,1]]}'
    found = decode_registration(oldest.encode(), "n1", 5)
    assert found == replace(registration, spare_log_id=0, cluster_address="", id=0, rack="")
    for wrong in ("h", ":9", "h:0", "h:65536", "h:x"):
        with pytest.raises(CodecError, match="HOST:PORT"):
            decode_registration(text.replace("h:9", wrong).encode(), "n1", 5)


def test_log_identities_keep_the_bytes_of_earlier_versions() -> None:
    """The persistent half of a registration, written and read."""
    registration = Registration("n1", 5, True, log_ids={4: 1, 2: 7}, spare_log_id=50)
    text = b'{"v":1,"active":true,"spare_gen":50,"gens":[[2,7],[4,1]]}'
    assert encode_log_identity(registration) == text
    found = decode_log_identity(text)
    assert (found.active, found.log_id_of(4), found.log_id_of(9)) == (True, 1, 50)
    with pytest.raises(CodecError, match="log identity"):
        decode_log_identity(text.replace(b"[4,1]", b"[4]"))
