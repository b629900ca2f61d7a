"""`isthmus riak ...` against an admin listener that answers from a script: requests, output and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from tests.support.fake_admin_listener import FakeAdminListener

SEED: dict[str, Any] = {
    "state": "running", "way": "queue", "node": "w-1", "bucket_type": None, "bucket": None, "fraction": 0.42,
    "left_ms": 90_000, "buckets": 3, "buckets_done": 1, "current": ["default", "users"], "current_keys": 100,
    "current_done": 26, "keys": 500, "compared": 400, "missing": 0, "refused": 0,
    "notes": ["default/a: clocks were not compared"], "notes_left_out": 0, "error": "7 changes wait in the queues",
    "began_ms": 0, "changed_ms": 0, "ended_ms": None, "set": {"by": "ann", "at_ms": 0, "reason": ""},
}  # fmt: skip
RIAK: dict[str, Any] = {
    "name": "old", "queue": "isthmus", "urls": ["http://r1:8098", "http://r2:8098"], "bucket_types": "*",
    "from": "operator", "set": {"by": "ann", "at_ms": 0, "reason": "copy"}, "user": "", "workers": 0,
    "bytes_per_second": 0, "objects_per_second": 0, "states": {"running": 2}, "unusable": "", "left_out": 1,
    "answers_lost": 2, "lost": 3, "seed": SEED,
}  # fmt: skip
LIST = {"node": "w-1", "riaks": [RIAK]}


def rows(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_riaks_are_listed_and_one_is_shown_with_its_seed(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Links by state, what was lost, and how far the seed is, with its estimate; a name that is not there is
    refused."""
    listener.respond("/admin/riaks", LIST)
    assert cli.main(["riak", "list"]) == Exit.OK
    assert rows(capsys.readouterr().out)[1] == "old isthmus * operator 2 running - 3 running 42 %"
    assert cli.main(["riak", "status", "old"]) == Exit.OK
    told = capsys.readouterr().out.splitlines()
    for line in (
        "nodes: http://r1:8098, http://r2:8098",
        "set: by ann, 1970-01-01 00:00:00Z: copy",
        "answers lost: 2",
        "seed: running 42 %",
        "seed began: 1970-01-01 00:00:00Z, 90.0 s left",
        "buckets: 1 of 3; at default/users, 26 of 100 keys",
        "keys: 500 sent; 400 compared, 0 missing",
        "note: default/a: clocks were not compared",
        "waits for: 7 changes wait in the queues",
    ):
        assert line in told
    assert cli.main(["riak", "status", "old", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == RIAK
    assert cli.main(["riak", "status", "new"]) == Exit.REFUSED
    assert "there is no Riak 'new'; there are: old" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("states", "code"),
    [(["ok", "warn"], Exit.OK), (["ok", "fail", "unknown"], Exit.DIFFERS), (["ok", "unknown"], Exit.UNAVAILABLE)],
)
def test_a_check_ends_with_the_code_of_its_worst_line(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], states: list[str], code: Exit
) -> None:
    """delete_mode, which no request tells, does not count."""
    lines = [{"what": f"w{n}", "state": state, "found": "", "right": ""} for n, state in enumerate(states)]
    lines.append({"what": "delete_mode", "state": "unknown", "found": "no request tells it", "right": "keep"})
    listener.respond("/admin/riaks/check", {"checks": lines})
    assert cli.main(["riak", "check", "http://r1:8098", "http://r2:8098", "--peer-user", "u"]) == code
    ((_, body),) = listener.posted
    assert (body["urls"], body["queue"], body["user"]) == ("http://r1:8098,http://r2:8098", "isthmus", "u")
    assert "delete_mode unknown no request tells it keep" in rows(capsys.readouterr().out)


def test_a_riak_that_would_not_work_is_added_only_with_a_word(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """What fails is shown, and nothing is added where nobody can answer; --yes adds it without a test."""
    failing = {"what": "queue", "state": "fail", "found": "no queue", "right": "replrtq_srcqueue"}
    listener.respond("/admin/riaks/check", {"checks": [failing]})
    listener.respond("/admin/riaks/add", LIST)
    command = ["riak", "add", "old", "http://r1:8098", "--bytes", "5MB", "--workers", "3"]
    assert cli.main(command) == Exit.USAGE
    assert "queue: no queue; right: replrtq_srcqueue" in capsys.readouterr().err
    assert cli.main([*command, "--yes"]) == Exit.OK
    path, body = listener.posted[-1]
    assert (path, body["name"], body["bytes_per_second"], body["workers"]) == ("/admin/riaks/add", "old", 5_000_000, 3)
    assert "riak: fetches from old" in capsys.readouterr().out


def test_removals_and_seeds_are_sent_to_the_riak_of_that_name(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A seed of everything, of a type, of a bucket, by lists of keys; and its stop."""
    for act in ("remove", "seed", "seed/stop"):
        listener.respond(f"/admin/riaks/old/{act}", LIST)
    assert cli.main(["riak", "remove", "old", "--reason", "done"]) == Exit.OK
    sent = []
    for more in ([], ["--bucket-type", "t"], ["--bucket", "t/b%20c"], ["--bucket", "b", "--by-keys"], ["--stop"]):
        assert cli.main(["riak", "seed", "old", *more]) == Exit.OK
        path, body = listener.posted[-1]
        sent.append((path.rpartition("old/")[2], body.get("way"), body.get("bucket_type"), body.get("bucket")))
    assert sent == [
        ("seed", "queue", None, None),
        ("seed", "queue", "t", None),
        ("seed", "queue", "t", "b%20c"),
        ("seed", "keys", "default", "b"),
        ("seed/stop", None, None, None),
    ]
    assert "riak: the seed from old is stopped" in capsys.readouterr().out
    assert cli.main(["riak", "seed", "old", "--stop", "--by-keys"]) == Exit.USAGE
    assert cli.main(["riak", "seed", "old", "--bucket", "t/b", "--bucket-type", "u"]) == Exit.USAGE


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        ({"state": "done"}, Exit.OK),
        ({"state": "done", "missing": 2}, Exit.DIFFERS),
        ({"state": "failed", "error": "no queue"}, Exit.DIFFERS),
    ],
)
def test_a_seed_that_is_waited_for_ends_with_what_came_out(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], ended: dict[str, Any], code: Exit
) -> None:
    """Code 1 when keys are missing, and when it failed, with the reason."""
    listener.respond("/admin/riaks/old/seed", LIST)
    listener.respond("/admin/riaks", {"node": "w-1", "riaks": [{**RIAK, "seed": {**SEED, "error": "", **ended}}]})
    assert cli.main(["riak", "seed", "old", "--wait"]) == code
    told = capsys.readouterr()
    if ended["state"] == "failed":
        assert "the seed is failed: no queue" in told.err
    else:
        assert f"riak: seeded 500 keys from old; {ended.get('missing', 0)} missing, 0 refused" in told.out
