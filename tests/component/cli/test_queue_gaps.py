"""`isthmus gaps`, against an admin listener that answers from a script."""

from __future__ import annotations

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from tests.support.fake_admin_listener import FakeAdminListener

GAP = {
    "queue": "to-west", "node": "e1", "priority": 3, "id": "4:10", "partition": 4, "from_offset": 10, "upto_offset": 20,
    "from_ms": 1_000, "upto_ms": 2_000, "count_at_least": 7, "count_at_most": None, "what": "cleared", "by": "ann",
    "reason": "because",
}  # fmt: skip


def test_gaps_of_partitions_and_of_bulk_references_show_what_they_cover(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A partition's gap shows its offsets, a growing one is marked, and references lost with a node are shown for any
    partition, with an upper bound of their count."""
    grows = GAP | {"id": "5:1", "partition": 5, "upto_offset": None, "upto_ms": None}
    lower = {"partition": None, "from_offset": None, "upto_offset": None, "count_at_least": 0, "count_at_most": 256}
    crashed = GAP | lower | {"id": "e1:2:9", "what": "crashed", "by": "", "reason": "", "bucket_types": ["a", "b"]}
    listener.respond("/admin/gaps", {"gaps": [GAP, grows, crashed], "unknown": ["e3"]})
    assert cli.main(["gaps"]) == Exit.OK
    shown = capsys.readouterr()
    head, *rows = [line.split() for line in shown.out.splitlines()]
    assert head[:8] == ["QUEUE", "ID", "PARTITION", "FROM", "UP", "TO", "AT", "LEAST"]
    assert rows[0][1:7] == ["4:10", "4", "10", "20", "7", "unknown"]
    assert rows[1][1:6] == ["5:1", "5", "10", "grows", "7"]
    assert rows[2][1:7] == ["e1:2:9", "any", "-", "-", "0", "256"]
    assert rows[2][-4:] == ["a,", "b", "crashed", "-"]
    assert "node e3 does not answer" in shown.err
