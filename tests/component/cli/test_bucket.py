"""`isthmus bucket` and the properties of `isthmus bucket-type`, against an admin listener that answers from a
script."""

from __future__ import annotations

import json

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from tests.support.fake_admin_listener import FakeAdminListener

ROW = {
    "property": "allow_mult",
    "value": False,
    "origin": "bucket",
    "by": "ann@desk",
    "at_ms": 1_700_000_000_000,
    "acts": True,
    "right": "true or false",
    "meaning": "siblings",
}
PLAIN = {**ROW, "property": "r", "value": "quorum", "origin": "default", "by": None, "at_ms": None, "acts": False}
ANSWER = {"outcome": "set", "bucket_type": "notes", "bucket": "a%2Fb", "properties": [ROW, PLAIN]}


def test_properties_of_a_bucket_are_shown_as_table_and_json(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row each with where it comes from; without a type the bucket is of the default one; JSON is the node's."""
    listener.respond("/admin/buckets/notes/a%2Fb/properties", ANSWER)
    listener.respond("/admin/buckets/default/b/properties", ANSWER)
    assert cli.main(["bucket", "show", "notes/a/b"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["PROPERTY", "VALUE", "FROM", "BY", "WHEN", "EFFECT"]
    assert lines[1].split()[:4] == ["allow_mult", "false", "bucket", "ann@desk"]
    assert lines[2].split()[:5] == ["r", "quorum", "default", "-", "-"]
    assert cli.main(["bucket", "show", "b", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == ANSWER
    assert cli.main(["bucket", "show", "notes/"]) == Exit.USAGE


def test_properties_are_set_and_unset_as_they_were_typed(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON values are sent as such, anything else as text; the resulting values are shown; invalid input is refused
    before it is sent."""
    for path in ("/admin/buckets/notes/b/properties", "/admin/bucket-types/notes/properties"):
        listener.respond(f"{path}/set", ANSWER)
        listener.respond(f"{path}/unset", {**ANSWER, "outcome": "unset"})
    assert cli.main(["bucket", "set", "notes/b", "allow_mult=false", "delete_mode=3s", "--by", "ann"]) == Exit.OK
    out = capsys.readouterr().out
    assert out.startswith("notes/b: set\n")
    assert "quorum" not in out, "only what somebody has set"
    assert cli.main(["bucket", "unset", "notes/b", "allow_mult", "--by", "ann", "--dry-run"]) == Exit.OK
    assert cli.main(["bucket-type", "set", "notes", "max_siblings=5", "--by", "ann"]) == Exit.OK
    assert cli.main(["bucket-type", "unset", "notes", "--by", "ann"]) == Exit.OK
    props = {"allow_mult": False, "delete_mode": "3s"}
    assert listener.posted == [
        ("/admin/buckets/notes/b/properties/set", {"props": props, "by": "ann", "dry_run": False}),
        ("/admin/buckets/notes/b/properties/unset", {"names": ["allow_mult"], "by": "ann", "dry_run": True}),
        (
            "/admin/bucket-types/notes/properties/set",
            {"props": {"max_siblings": 5}, "by": "ann", "dry_run": False},
        ),
        ("/admin/bucket-types/notes/properties/unset", {"names": [], "by": "ann", "dry_run": False}),
    ]
    for wrong in (["allow_mult"], ["=3"], ["r=1", "r=2"]):
        assert cli.main(["bucket", "set", "notes/b", *wrong]) == Exit.USAGE
    assert cli.main(["bucket-type", "set", "notes"]) == Exit.USAGE
    assert cli.main(["bucket-type", "set", "notes", "r=1", "--min-isr", "2"]) == Exit.USAGE


def test_unsetting_shows_the_values_that_are_in_force_now(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the properties that were named, or of all; they come from the type or the defaults."""
    now = {**PLAIN, "property": "allow_mult", "value": True, "origin": "bucket-type"}
    listener.respond(
        "/admin/buckets/notes/b/properties/unset", {**ANSWER, "outcome": "unset", "properties": [now, PLAIN]}
    )
    for names, shown in ((["allow_mult"], ["allow_mult"]), ([], ["allow_mult", "r"])):
        assert cli.main(["bucket", "unset", "notes/b", *names]) == Exit.OK
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines[0] == ["notes/b:", "unset"]
        assert [line[0] for line in lines[2:]] == shown
        assert lines[2][1:3] == ["true", "bucket-type"]


def test_a_bucket_type_is_made_with_properties(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The properties are part of the request, and the placement is the same as without them."""
    listener.respond("/admin/bucket-types/notes", {"outcome": "created", "online": 1, "partitions": []})
    made = ["bucket-type", "create", "notes", "--partitions", "1", "--replication-factor", "1"]
    assert cli.main([*made, "--prop", "allow_mult=false", "--prop", "delete_mode=immediate"]) == Exit.OK
    ((_, wish),) = listener.posted
    assert wish["props"] == {"allow_mult": False, "delete_mode": "immediate"}
    capsys.readouterr()
