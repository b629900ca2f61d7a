"""`isthmus fold`: pages that may succeed later are retried, others end the fold with the place to continue from."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.node.cli import fold
from isthmus.node.cli import main as cli
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.exit_codes import Exit
from isthmus.repl.machine import machine
from tests.support.fake_admin_listener import FakeAdminListener


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdminListener]:
    """A listener with a bucket type of a single partition."""
    found = FakeAdminListener()
    found.respond("/admin/partitions?bucket_type=default", {"partitions": [{"index": 0, "partition": 7}]})
    monkeypatch.setenv("ISTHMUS_ADMIN", found.url)
    yield found
    found.close()


PAGE: dict[str, Any] = {
    "next": None, "scanned": 3, "matched": 2, "found": [], "done": 2, "refused": {}, "buckets": {"b": 2},
    "objects": 2, "tombstones": 0, "bytes": 9, "sizes": {}, "siblings": {},
}  # fmt: skip


def test_a_page_is_asked_for_again_while_that_may_help(
    listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On an overloaded node or a moving leadership the same page is requested again, for a bounded time; then the fold
    continues."""
    refusals = iter(("overloaded", "not-ready", "not-leader"))

    def later(_seconds: float) -> None:
        reason = next(refusals, None)
        if reason is None:
            listener.respond("/admin/folds", PAGE)
        else:
            listener.respond("/admin/folds", {"error": "not now", "reason": reason}, 503)

    monkeypatch.setattr(machine(), "sleep", later)
    later(0)
    assert cli.main(["fold", "list-buckets"]) == Exit.OK
    assert len(listener.posted) == 4
    assert len({str(body) for _, body in listener.posted}) == 1
    assert capsys.readouterr().out.split() == ["BUCKET", "KEYS", "b", "2"]


def test_a_fold_that_cannot_go_on_shows_where_it_ended(
    listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After that time, or at once for permanent errors, it prints one line with the place to continue from, and the
    reason. A fold refused before its first page, such as for a wrong queue's name, has no such place."""
    monkeypatch.setattr(fold, "RETRY_LIMIT_S", -1.0)
    listener.respond("/admin/folds", {"error": "no room", "reason": "overloaded"}, 503)
    assert cli.main(["fold", "object-stats"]) == Exit.UNAVAILABLE
    assert "ended; --from 0:0: goes on from here" in capsys.readouterr().err
    monkeypatch.setattr(fold, "RETRY_LIMIT_S", 30.0)
    listener.respond("/admin/folds", {"error": "no such queue", "reason": "unknown-queue"}, 404)
    assert cli.main(["fold", "repl-keys", "nowhere", "--yes", "--from", "0:17:6b"]) == Exit.REFUSED
    assert "goes on" not in capsys.readouterr().err, "what was refused at once has not begun"


def test_a_fold_that_changes_something_does_not_ask_without_a_terminal(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal the command names the option to give, and nothing is done; its exit code is not that of an
    interruption."""
    assert cli.main(["fold", "erase-keys"]) == Exit.USAGE
    assert "use --yes" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_fold_that_ends_early_shows_what_there_was_until_then(
    listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    """`--from` continues behind these results, so they must be printed: buckets, sizes, found keys, and above all the
    number of changed keys."""
    found = [{"bucket": "b", "key": "k", "siblings": 1, "size_bytes": 9, "modified_ms": 0, "note": ""}]
    page = {**PAGE, "found": found, "next": {"segment": 17, "name": "6b"}, "sizes": {"4": 2}, "siblings": {"1": 2}}
    whole = fold._page

    for kind, words in (
        (["list-buckets"], "b"),
        (["object-stats"], "2"),
        (["find-tombs"], "1970-01-01" if output == "table" else '"k"'),
        (["erase-keys", "--yes"], "2 of 2 keys deleted" if output == "table" else '"done": 2'),
    ):
        listener.respond("/admin/folds", page)
        asked: list[Any] = []

        def once(admin: AdminClient, wish: dict[str, Any], asked: list[Any] = asked) -> dict[str, Any]:
            asked.append(wish)
            if len(asked) == 2:
                listener.respond("/admin/folds", {"error": "broken", "reason": "x"}, 500)
            return whole(admin, wish)

        monkeypatch.setattr(fold, "_page", once)
        assert cli.main(["fold", *kind, "-o", output]) == Exit.UNAVAILABLE
        said = capsys.readouterr()
        assert words in said.out
        assert "--from 0:17:6b goes on" in said.err


def test_a_question_names_all_that_narrows_a_fold(
    listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The confirmation of an erase lists all that narrows it, times and ranges of keys included."""
    terminal = io.StringIO("n\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    scope = ["--bucket", "b", "--key-from", "x", "--before", "2026-02-03", "--from", "0:5:"]
    assert cli.main(["fold", "erase-keys", *scope]) == Exit.INTERRUPTED
    asked = capsys.readouterr().err
    assert "bucket type default, bucket b, keys from x, modified before 2026-02-03, going on from 0:5:: go on?" in asked
    assert listener.posted == []
