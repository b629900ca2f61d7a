"""`isthmus queue show`, with the documents of real queues, and the requests of `queue throttle`."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from isthmus.queues.queue_documents import PUBLISHING
from isthmus.queues.rate_limit import Rates
from isthmus.queues.window_rules import FOLD
from tests.support.fake_admin_listener import FakeAdminListener
from tests.support.queue_listings import listed_queues
from tests.support.queue_node import audited_node
from tests.unit.queues.admin.test_acts import audit_info, keys, settled


async def test_a_queue_shows_in_words_what_it_has_and_what_it_has_not(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Absent things are reported as absent, not as unknown; every act shows who, when and why; priorities are a
    table."""
    documents: list[dict[str, Any]] = []

    async with audited_node() as queue_node:
        documents.extend(await listed_queues(queue_node.queues))
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        await queue_node.acts.push("q", keys(b"x"), FOLD, 0)
        await queue_node.acts.suspend("q", PUBLISHING, None, audit_info(queue_node))
        await queue_node.acts.throttle("q", Rates(1_000, 10), audit_info(queue_node))
        await queue_node.acts.clear("q", audit_info(queue_node))
        await settled(queue_node)
        documents.extend(await listed_queues(queue_node.queues))
    shown = []
    for document in documents:
        nodes = [{"node": document["node"], "queues": [document]}]
        listener.respond("/admin/queues/nodes", {"nodes": nodes})
        assert cli.main(["queue", "show", "q", "--node", document["node"]]) == Exit.OK
        shown.append(capsys.readouterr().out)
    fresh, busy = shown
    lines = dict(line.split(": ", 1) for line in fresh.splitlines() if ": " in line)
    assert lines["owner"].startswith("none")
    assert (lines["last decree"], lines["oldest"], lines["properties differ at"]) == ("none", "-", "-")
    assert lines["limits"] == "300,000 references, 1,000 whole objects, 200000 bytes an object"
    assert lines["throttle"].startswith("none; 0 bytes/s")
    assert "unknown" not in fresh.replace(lines["waiting"], "")
    lines = dict(line.split(": ", 1) for line in busy.splitlines() if ": " in line)
    assert lines["suspended"].startswith("publishing on all nodes, by ann at ")
    assert lines["suspended"].endswith(": because")
    assert lines["last decree"].startswith("cleared, version ")
    assert lines["throttle"].startswith("1000 bytes/s and 10 objects/s, set by ann at ")
    head, *rows = [line.split() for line in busy.split("\n\n")[1].splitlines()]
    assert head[:4] == ["PRIORITY", "WAITING", "IN", "FLIGHT"]
    assert [row[0] for row in rows] == ["real", "full-sync", "fold"]
    assert rows[2][-1] == "1", "cleared"


def test_limits_are_asked_for_as_they_are_meant(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that is not named stays, `none` and `--off` end limits, `--default` is the file's again; what is in force
    is printed."""
    for words, size, objects, default, done in (
        (["--bytes", "10MB"], 10_000_000, None, False, "set, on each node: 10000000 bytes/s, no limit of objects"),
        (["--bytes", "none", "--objects", "5"], 0, 5, False, "set, on each node: no limit of bytes, 5 objects/s"),
        (["--off"], 0, 0, False, "set, on each node: no limit"),
        (["--default"], None, None, True, "as configured, on each node: no limit"),
    ):
        configured = {"bytes_per_second": size or None, "objects_per_second": objects or None}
        listener.respond(
            "/admin/queues/q/throttle", {"queues": [{"name": "q", "throttle": {"configured": configured}}]}
        )
        assert cli.main(["queue", "throttle", "q", *words, "--by", "ann"]) == Exit.OK
        assert capsys.readouterr().out == f"queue q: {done}\n"
        wanted = {"bytes_per_second": size, "objects_per_second": objects, "default": default}
        assert listener.posted.pop() == ("/admin/queues/q/throttle", {**wanted, "by": "ann", "reason": ""})


@pytest.mark.parametrize(
    ("words", "stop"),
    [
        (["queue", "throttle", "q", "--bytes", "0"], "isthmus queue suspend NAME"),
        (["queue", "throttle", "q", "--bytes", "0B"], "isthmus queue suspend NAME"),
        (["queue", "throttle", "q", "--objects", "0"], "isthmus queue suspend NAME"),
        (["sink", "throttle", "--bytes", "0MB"], "isthmus sink suspend"),
        (["sink", "throttle", "--objects", "0", "--bytes", "1MB"], "isthmus sink suspend"),
    ],
)
def test_a_limit_of_0_does_not_open_what_it_may_be_meant_to_stop(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], words: list[str], stop: str
) -> None:
    """0 is refused before anything is asked, with what lifts a limit and what stops."""
    assert cli.main(words) == Exit.USAGE
    assert f'0 is no limit, not a stop: "none" or --off lifts the limit, `{stop}` stops' in capsys.readouterr().err
    assert listener.posted == []
