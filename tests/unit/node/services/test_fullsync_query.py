"""What nodes of an earlier version answer of full-sync is read, as far as they know it."""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.node.nouns.fullsync import CheckResultRow, FullSyncOfNode, FullSyncPeerRow
from isthmus.node.services.fullsync_query import FULLSYNC_CHECKS, FULLSYNC_RESULTS
from tests.support.noun_examples import example_of

LATER_OF_PEER = {"equal_ms", "equal_types", "both_ways", "gaps_uncompared", "gaps_uncompared_types"}
LATER_OF_RESULT = {"segments_ahead"}


def earlier_result() -> dict[str, Any]:
    """A result as a version that proved one direction alone had it."""
    return {name: value for name, value in example_of(CheckResultRow).items() if name not in LATER_OF_RESULT}


def test_checks_of_an_earlier_version_lack_what_it_did_not_know() -> None:
    """They are not called unknown as a whole; what they lack is absent from what is shown, not made up."""
    peer = {name: value for name, value in example_of(FullSyncPeerRow).items() if name not in LATER_OF_PEER}
    peer |= {"newest": {"t": earlier_result()}, "newest_looked": {"t": None}, "results": [earlier_result()]}
    answer = {**example_of(FullSyncOfNode), "peers": [peer]}
    del answer["failed"]
    read = FULLSYNC_CHECKS.answers.decode(msgspec.json.encode(answer))
    assert msgspec.json.decode(FULLSYNC_CHECKS.answers.encode(read)) == msgspec.json.decode(msgspec.json.encode(answer))


def test_results_of_an_earlier_version_are_read() -> None:
    """Those of all nodes are joined while a cluster is upgraded."""
    (read,) = FULLSYNC_RESULTS.answers.decode(msgspec.json.encode([{**earlier_result(), "peer": "west"}]))
    assert (read.peer, read.segments_ahead) == ("west", msgspec.UNSET)
