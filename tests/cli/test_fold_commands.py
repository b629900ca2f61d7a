"""`isthmus fold`: pages that may be had a moment later are asked for again, others end it with where to go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from node.cli import fold
from node.cli import main as cli
from node.cli.exits import Exit
from tests.cli.test_remote_commands import ToldListener


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[ToldListener]:
    """One with a bucket type of a single partition."""
    found = ToldListener()
    found.tell("/admin/partitions?bucket_type=default", {"partitions": [{"index": 0, "partition": 7}]})
    monkeypatch.setenv("ISTHMUS_ADMIN", found.url)
    yield found
    found.close()


PAGE: dict[str, Any] = {
    "next": None, "scanned": 3, "matched": 2, "found": [], "done": 2, "refused": {}, "buckets": {"b": 2},
    "objects": 2, "tombstones": 0, "bytes": 9, "sizes": {}, "siblings": {},
}  # fmt: skip


def test_a_page_is_asked_for_again_while_that_may_help(
    listener: ToldListener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that has no room, a leadership that moves: the same page again, a bounded time; then the fold goes on."""
    refusals = iter(("overloaded", "not-ready", "not-leader"))

    def later(_seconds: float) -> None:
        reason = next(refusals, None)
        if reason is None:
            listener.tell("/admin/folds", PAGE)
        else:
            listener.tell("/admin/folds", {"error": "not now", "reason": reason}, 503)

    monkeypatch.setattr(fold.time, "sleep", later)
    later(0)
    assert cli.main(["fold", "list-buckets"]) == Exit.OK
    assert len(listener.posted) == 4
    assert len({str(body) for _, body in listener.posted}) == 1
    assert capsys.readouterr().out.split() == ["BUCKET", "KEYS", "b", "2"]


def test_a_fold_that_cannot_go_on_says_where_it_ended(
    listener: ToldListener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beyond that time, or at once for what no other try would mend: one line to go on from, and the reason."""
    monkeypatch.setattr(fold, "AGAIN_S", -1.0)
    listener.tell("/admin/folds", {"error": "no room", "reason": "overloaded"}, 503)
    assert cli.main(["fold", "object-stats"]) == Exit.UNAVAILABLE
    assert "ended; --from 0:0: goes on from here" in capsys.readouterr().err
    monkeypatch.setattr(fold, "AGAIN_S", 30.0)
    listener.tell("/admin/folds", {"error": "no such queue", "reason": "unknown-queue"}, 404)
    assert cli.main(["fold", "repl-keys", "nowhere", "--yes", "--from", "0:17:6b"]) == Exit.REFUSED
    assert "--from 0:17:6b goes on" in capsys.readouterr().err


def test_a_fold_that_changes_something_does_not_ask_where_nobody_answers(
    listener: ToldListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal it says what to give, and nothing is done; it does not end as if it had been interrupted."""
    assert cli.main(["fold", "erase-keys"]) == Exit.USAGE
    assert "--yes says so instead" in capsys.readouterr().err
