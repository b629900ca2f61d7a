"""Documents of the sink have exactly the bytes that earlier versions wrote, and read back."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.repl.metastore.port import Versioned
from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import CodecError
from isthmus.sink import limits, peers, suspensions
from isthmus.sink.limits import SinkLimits
from isthmus.sink.peers import PeerEntry, QueueWorkers, SetPeers
from isthmus.sink.suspensions import SinkSuspension

GOLDEN: list[tuple[Document[Any], Any, bytes]] = [
    (
        limits.DOCUMENT,
        {"*": SinkLimits(3, None, 5, None, "ann", 6, "r"), "w1": SinkLimits(None, 0, None, 7, "bob", 8, "")},
        (
            b'{"*": {"workers": 3, "peer_limit": null, "bytes_per_second": 5, "objects_per_second": null'
            b', "by": "ann", "at_ms": 6, "reason": "r"}, "w1": {"workers": null, "peer_limit": 0, "bytes'
            b'_per_second": null, "objects_per_second": 7, "by": "bob", "at_ms": 8, "reason": ""}}'
        ),
    ),
    (
        suspensions.DOCUMENT,
        (
            SinkSuspension("q", None, "ann", 5, "r"),
            SinkSuspension(None, "http://e:1", "bob", 6, "", "w1"),
        ),
        (
            b'[{"queue": "q", "peer": null, "by": "ann", "at_ms": 5, "reason": "r", "node": null}, {"que'
            b'ue": null, "peer": "http://e:1", "by": "bob", "at_ms": 6, "reason": "", "node": "w1"}]'
        ),
    ),
    (
        peers.DOCUMENT,
        SetPeers(
            (
                PeerEntry("q", "http://e:8098", "east", None, False, "ann", 5, "r"),
                PeerEntry("q", "http://f:8098", "", "/t", True, "ann", 5, "r"),
            ),
            (QueueWorkers("q", None, 3, "ann", 5, "r"), QueueWorkers("p", "w1", 4, "bob", 6, "")),
        ),
        (
            b'{"peers": [{"queue": "q", "url": "http://e:8098", "cluster": "east", "token_file": null, "'
            b'removed": false, "by": "ann", "at_ms": 5, "reason": "r"}, {"queue": "q", "url": "http://f:'
            b'8098", "cluster": "", "token_file": "/t", "removed": true, "by": "ann", "at_ms": 5, "reaso'
            b'n": "r"}], "workers": [{"queue": "q", "node": null, "workers": 3, "by": "ann", "at_ms": 5,'
            b' "reason": "r"}, {"queue": "p", "node": "w1", "workers": 4, "by": "bob", "at_ms": 6, "reas'
            b'on": ""}]}'
        ),
    ),
]


@pytest.mark.parametrize(("document", "value", "written"), GOLDEN)
def test_documents_have_the_bytes_of_earlier_versions(document: Document[Any], value: Any, written: bytes) -> None:
    """This version writes the same bytes as earlier ones, and reads theirs as the same value."""
    assert document.encode(value) == written
    assert document.decode(Versioned(written, 1)) == value


@pytest.mark.parametrize(
    ("document", "written", "path"),
    [
        (limits.DOCUMENT, b'{"*": {"workers": -1}}', "workers"),
        (suspensions.DOCUMENT, b'[{"queue": 1}]', "queue"),
        (peers.DOCUMENT, b'{"workers": [{"queue": "q", "node": null, "workers": 0}]}', r"workers\[0\].workers"),
    ],
)
def test_a_damaged_document_is_refused_with_the_path_of_the_fault(
    document: Document[Any], written: bytes, path: str
) -> None:
    """The error names the field, and is a CodecError."""
    with pytest.raises(CodecError, match=path):
        document.decode(Versioned(written, 1))
