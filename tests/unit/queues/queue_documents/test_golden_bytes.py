"""Documents of source queues have exactly the bytes that earlier versions wrote, and read back."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues.queue_documents import (
    DEFINITIONS,
    POSITIONS_MAX,
    AuditInfo,
    BulkMark,
    CursorCommand,
    Definition,
    LostReferences,
    OfferChange,
    QueueOwner,
    QueuePaths,
    QueueSuspension,
    SetLimits,
    SetRates,
)
from isthmus.queues.rate_limit import Rates
from isthmus.repl.metastore.codecs import PARTITION_MAX, RECORD_BYTES_MAX
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import CodecError

UUID = bytes(range(16))
CHANGE = OfferChange(
    "buckettype:logs", None, "any", False, 5, 2, "ann@ops", 1_700_000_000_002, "because \u00e4", again=True
)
RELEASED = CursorCommand(4, "released", 0, "bob", 1_699_999_999_999, "")
CLEARED = CursorCommand(
    7, "cleared", 1_700_000_001_000, "ann@ops", 1_700_000_000_002, "because \u00e4", ((1, 5), (2, 900_000)), True,
    CHANGE, RELEASED,
)  # fmt: skip

PATHS = QueuePaths("q")

GOLDEN: list[tuple[Document[Any], Any, bytes]] = [
    (
        PATHS.owner,
        QueueOwner(UUID, "west", 3, 1_700_000_000_000, "w1"),
        (
            b'{"owner": "000102030405060708090a0b0c0d0e0f", "cluster": "west", "version": 3, "since_ms":'
            b' 1700000000000, "by": "w1"}'
        ),
    ),
    (
        PATHS.owner,
        QueueOwner(b"", "", 4, 1_700_000_000_001, "ann@ops", UUID),
        (
            b'{"owner": "", "cluster": "", "version": 4, "since_ms": 1700000000001, "by": "ann@ops", "fo'
            b'rmer": "000102030405060708090a0b0c0d0e0f"}'
        ),
    ),
    (
        PATHS.command,
        CLEARED,
        (
            b'{"version": 7, "what": "cleared", "start_ms": 1700000001000, "by": "ann@ops", "at_ms": 170'
            b'0000000002, "reason": "because \\u00e4", "positions": [[1, 5], [2, 900000]], "by_time": tru'
            b'e, "change": {"filter": "buckettype:logs", "cascade": null, "was": "any", "was_cascade": f'
            b'alse, "version": 5, "since": 2, "by": "ann@ops", "at_ms": 1700000000002, "reason": "becaus'
            b'e \\u00e4", "again": true}, "released": {"version": 4, "what": "released", "start_ms": 0, "'
            b'by": "bob", "at_ms": 1699999999999, "reason": "", "positions": [], "by_time": false, "chan'
            b'ge": null, "released": null}}'
        ),
    ),
    (
        PATHS.command,
        CursorCommand(1, "registered", 0, "ann", 1, ""),
        (
            b'{"version": 1, "what": "registered", "start_ms": 0, "by": "ann", "at_ms": 1, "reason": "",'
            b' "positions": [], "by_time": false, "change": null, "released": null}'
        ),
    ),
    (
        PATHS.limits,
        SetLimits({"queue_limit_count": 5, "overflow": "discard", "riak_fetch": True}, "ann", 7, "r"),
        (
            b'{"queue_limit_count": 5, "overflow": "discard", "riak_fetch": true, "by": "ann", "at_ms": '
            b'7, "reason": "r"}'
        ),
    ),
    (PATHS.limits, None, b"{}"),
    (
        DEFINITIONS,
        {
            "a": Definition(QueueSettings("a", filter="bucketname:x", cascade=True), "ann", 5, "why"),
            "b": Definition(None, "bob", 6, ""),
        },
        (
            b'{"a": {"filter": "bucketname:x", "cascade": true, "object_size_limit_bytes": 200000, "obje'
            b'ct_limit_count": 1000, "queue_limit_count": 300000, "overflow": "replay", "rate_limit_byte'
            b's": 0, "object_rate_limit_count": 0, "lease_ms": 30000, "riak_fetch": false, "by": "ann", '
            b'"at_ms": 5, "reason": "why"}, "b": {"delisted": true, "by": "bob", "at_ms": 6, "reason": "'
            b'"}}'
        ),
    ),
    (
        PATHS.suspensions,
        (QueueSuspension("serving", None, "ann", 5, "r"), QueueSuspension("publishing", "e1", "bob", 6, "")),
        (
            b'{"suspensions": [{"what": "serving", "node": null, "by": "ann", "at_ms": 5, "reason": "r"}'
            b', {"what": "publishing", "node": "e1", "by": "bob", "at_ms": 6, "reason": ""}]}'
        ),
    ),
    (
        PATHS.rates,
        SetRates(Rates(5, 6), AuditInfo("ann", 5, "r")),
        (b'{"bytes": 5, "objects": 6, "by": "ann", "at_ms": 5, "reason": "r"}'),
    ),
    (
        PATHS.held,
        (BulkMark("e1", 2, 256, 1_700_000_000_000), BulkMark("e2", 1, 2048, 5)),
        (
            b'{"held": [{"node": "e1", "priority": 2, "at_most": 256, "since_ms": 1700000000000}, {"node'
            b'": "e2", "priority": 1, "at_most": 2048, "since_ms": 5}]}'
        ),
    ),
    (
        PATHS.held,
        (BulkMark("e1", 2, 256, 5, ("default", "t")),),
        (b'{"held": [{"node": "e1", "priority": 2, "at_most": 256, "since_ms": 5, "bucket_types": ["default", "t"]}]}'),
    ),
    (
        PATHS.lost,
        (
            LostReferences("e1", 2, 3, 5, 6, "crashed", "", 7, 256),
            LostReferences("e2", 1, 3, 5, 6, "cleared", "ann", 7),
        ),
        (
            b'{"lost": [{"node": "e1", "priority": 2, "left_out": 3, "from_ms": 5, "upto_ms": 6, "what":'
            b' "crashed", "by": "", "at_ms": 7, "at_most": 256}, {"node": "e2", "priority": 1, "left_out'
            b'": 3, "from_ms": 5, "upto_ms": 6, "what": "cleared", "by": "ann", "at_ms": 7, "at_most": n'
            b"ull}]}"
        ),
    ),
]


@pytest.mark.parametrize(("document", "value", "written"), GOLDEN)
def test_documents_have_the_bytes_of_earlier_versions(document: Document[Any], value: Any, written: bytes) -> None:
    """This version writes the same bytes as earlier ones, and reads theirs as the same value."""
    assert document.encode(value) == written
    assert document.decode(Versioned(written, 1)) == value


@pytest.mark.parametrize(
    ("document", "written", "value"),
    [
        (PATHS.suspensions, b'{"by": "ann", "at_ms": 5, "reason": "r"}',
         (QueueSuspension("serving", None, "ann", 5, "r"),)),
        (PATHS.suspensions, b"{}", ()),
        (PATHS.command,
         b'{"version": 2, "what": "cleared", "start_ms": 5, "by": "ann", "at_ms": 1, "reason": "", "later": [1]}',
         CursorCommand(2, "cleared", 5, "ann", 1, "")),
        (DEFINITIONS, b'{"a": {"filter": "any", "later": 1}}', {"a": Definition(QueueSettings("a"), "", 0, "")}),
        (PATHS.lost,
         b'{"lost":[{"node":"n", "priority":2,"left_out":3,"from_ms":5,"upto_ms":6,"what":"","by":"","at_ms":7}]}',
         (LostReferences("n", 2, 3, 5, 6, "", "", 7),)),
    ],
)  # fmt: skip
def test_documents_of_other_versions_are_read(document: Document[Any], written: bytes, value: Any) -> None:
    """Fields that an earlier version did not write have defaults, and fields of a later one are ignored."""
    assert document.decode(Versioned(written, 1)) == value


@pytest.mark.parametrize(
    ("document", "written", "path"),
    [
        (PATHS.owner, b'{"owner": "xy", "cluster": "w", "version": 1, "since_ms": 1, "by": ""}', "owner"),
        (PATHS.owner, b'{"owner": "", "cluster": "w", "version": 0, "since_ms": 1, "by": ""}', "version"),
        (PATHS.command, b'{"version": 1, "what": 5}', "what"),
        (PATHS.command, b'{"version": 1, "what": "cleared", "start_ms": -1}', "start_ms"),
        (PATHS.limits, b'{"queue_limit_count": true}', "queue_limit_count"),
        (PATHS.rates, b'{"bytes": -1, "objects": 1, "by": "", "at_ms": 1, "reason": ""}', "bytes"),
        (PATHS.held, b'{"held": [{"node": "e1", "priority": "2", "at_most": 1, "since_ms": 2}]}', "priority"),
        (DEFINITIONS, b'{"a": {"cascade": 1}}', "cascade"),
        (PATHS.suspensions, b"[", "suspensions"),
    ],
)
def test_a_damaged_document_is_refused_with_the_path_of_the_fault(
    document: Document[Any], written: bytes, path: str
) -> None:
    """The error names the field, and is a CodecError."""
    with pytest.raises(CodecError, match=path):
        document.decode(Versioned(written, 1))


def test_a_command_with_the_most_positions_fits_into_the_metastore() -> None:
    """With the longest numbers, and the same again in the release before it, which then goes by time."""
    longest = ((PARTITION_MAX, (1 << 44) - 1),) * POSITIONS_MAX
    released = CursorCommand(4, "released", 0, "bob", 1_699_999_999_999, "", longest)
    command = CursorCommand(5, "placed", 0, "ann", 1_700_000_000_000, "", longest).following(released)
    assert command.released is not None
    assert command.released.positions == ()
    assert len(PATHS.command.encode(command)) < RECORD_BYTES_MAX * 3 // 4
