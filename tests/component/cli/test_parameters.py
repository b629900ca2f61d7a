"""Times and files on the command line: parsed by one rule, refused with one code."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.parameters import PartitionParameter, time_of
from isthmus.repl.model.errors import BadInput
from tests.support.fake_admin_listener import FakeAdminListener

FEBRUARY_MS = int(datetime(2026, 2, 3, 4, 5, tzinfo=UTC).timestamp()) * 1000


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose time zone is not UTC."""
    monkeypatch.setenv("TZ", "CET-1CEST")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
def test_a_time_means_the_same_in_every_command(listener: FakeAdminListener) -> None:
    """Times are UTC, whatever the machine's time zone: at a queue's release and registration, at full-sync's range, at
    a fold."""
    text = "2026-02-03T04:05"
    listener.respond("/admin/queues/q/release", {})
    listener.respond("/admin/queues/register", {})
    listener.respond("/admin/fullsync/set-range", {})
    listener.respond("/admin/partitions?bucket_type=default", {"partitions": [{"index": 0, "partition": 7}]})
    page = {"next": None, "matched": 0, "found": [], "done": 0, "refused": {}}
    listener.respond("/admin/folds", page)
    assert cli.main(["queue", "release", "q", "--from", text, "--yes"]) == Exit.OK
    assert cli.main(["queue", "register", "q", "--from", text]) == Exit.OK
    assert cli.main(["fullsync", "set-range", text, "2026-02-04", "--peer", "p"]) == Exit.OK
    assert cli.main(["fold", "find-tombs", "--since", text]) == Exit.OK
    wishes = [wish for _, wish in listener.posted]
    assert [wish.get("from", wish.get("since_ms")) for wish in wishes] == [FEBRUARY_MS] * 4


@pytest.mark.usefixtures("in_berlin")
def test_a_zone_that_is_named_counts() -> None:
    """The forms in which commands print times are accepted, too, and milliseconds as in JSON."""
    for text in ("2026-02-03T05:05+01:00", "2026-02-03 04:05:00Z", "2026-02-03T04:05Z", str(FEBRUARY_MS)):
        assert time_of(text) == FEBRUARY_MS
    assert time_of("2026-02-03T04:05:00.123") == FEBRUARY_MS + 123
    assert time_of("2016-12-31T23:59:60Z") == time_of("2017-01-01"), "a leap second"


@pytest.mark.parametrize(
    "text", ["", "yesterday", "20260203", "0", "1969-12-31", "0001-01-01", "0001-01-01T00:00+05:00"]
)
def test_an_invalid_time_is_a_usage_error(listener: FakeAdminListener, text: str) -> None:
    """No request is sent. A date without dashes is invalid: elsewhere a number is milliseconds."""
    with pytest.raises(BadInput):
        time_of(text)
    assert cli.main(["fold", "erase-keys", "--yes", "--before", text]) == Exit.USAGE
    assert listener.posted == []


@pytest.mark.parametrize("more", [["--before", "1970-01-01"], ["--since", "2026-02-03", "--before", "2026-02-03"]])
def test_a_fold_over_no_time_at_all_is_refused(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    """There is nothing before 1970; a node takes the number 0 for "no bound", and would have erased everything."""
    listener.respond("/admin/partitions?bucket_type=default", {"partitions": [{"index": 0, "partition": 7}]})
    assert cli.main(["fold", "erase-keys", "--yes", *more]) == Exit.USAGE
    assert "nothing was modified before" in capsys.readouterr().err
    assert listener.posted == []


@pytest.mark.parametrize("place", ["2:0:", "99:0:", "-1:0:", "0:-5:", "0:1048577:", "0:5:zz", "0", "x"])
def test_a_fold_goes_on_only_from_a_place_that_there_is(listener: FakeAdminListener, place: str) -> None:
    """A place beyond the last partition would have found nothing, as if everything had been searched."""
    found = [{"index": 0, "partition": 7}, {"index": 1, "partition": 8}]
    listener.respond("/admin/partitions?bucket_type=default", {"partitions": found})
    assert cli.main(["fold", "list-buckets", "--from", place]) == Exit.USAGE
    assert listener.posted == []


def test_a_folds_bucket_type_is_asked_for_as_it_is_written(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sign with a meaning in URLs does not make another type of it."""
    listener.respond(
        "/admin/partitions?bucket_type=notes%26x", {"error": "there is no bucket type", "reason": "u"}, 404
    )
    listener.respond("/admin/partitions?bucket_type=notes&x", {"partitions": [{"index": 0, "partition": 7}]})
    assert cli.main(["fold", "erase-keys", "--yes", "--bucket-type", "notes&x"]) == Exit.REFUSED
    assert "there is no bucket type" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["partition", "assign", "--file"],
        ["partition", "reassign", "--file"],
        ["bucket-type", "create", "t", "--file"],
        ["queue", "register", "q", "--positions"],
        ["queue", "place", "q", "--positions"],
        ["kv", "put", "b", "k", "--file"],
        ["config", "check"],
        ["config", "show"],
        ["node", "run"],
        ["node", "new-identity"],
        ["local", "up", "--dir", "unused"],
        ["dev", "certs", "unused", "--for"],
        ["cluster", "status", "--token-file"],
        ["cluster", "status", "--ca"],
    ],
)
def test_a_file_that_is_not_there_is_a_usage_error(
    listener: FakeAdminListener,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    """Every command that takes a file: code 2 and the file's name, and no request is sent."""
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "absent.json", tmp_path):
        assert cli.main([*arguments, str(path)]) == Exit.USAGE
        said = capsys.readouterr()
        assert str(path) in said.err + said.out
    assert listener.posted == []


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["option", "get", "replication.min.isr"], "/admin/options/replication.min.isr"),
        (["queue", "ledger", "q"], "/admin/queues/q/ledger"),
        (["ledger", "q"], "/admin/queues/q/ledger"),
        (["queue", "gaps", "q"], "/admin/gaps?queue=q"),
        (["gaps", "q"], "/admin/gaps?queue=q"),
    ],
)
def test_older_commands_are_accepted(listener: FakeAdminListener, words: list[str], path: str) -> None:
    """Older commands have the effect of the newer ones."""
    listener.respond(path, {})
    assert cli.main([*words, "-o", "json"]) == Exit.OK


def test_older_options_are_accepted(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """Older names mean the same option; the help shows the newer name alone."""
    racks = ["partition", "plan", "--racks", "a:1,b:1", "--partitions", "1", "--replication-factor", "1", "-o", "json"]
    for name in ("--ignore-racks", "--ignore-rack-assignment"):
        assert cli.main([*racks, name]) == Exit.OK
    option = "/admin/options/replication.min.isr/set"
    listener.respond(option, {"outcome": "would be set", "options": []})
    for name in ("--dry-run", "--validate-only"):
        assert cli.main(["option", "set", "replication.min.isr", "1", name]) == Exit.OK
    assert [body["dry_run"] for _, body in listener.posted] == [True, True]
    capsys.readouterr()
    assert cli.main(["option", "set", "--help"]) == Exit.OK
    assert "--validate-only" not in capsys.readouterr().out


def test_an_address_without_scheme_is_http(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """HOST:PORT is taken as http://HOST:PORT, by --admin and --http."""
    listener.respond("/admin/lag", {"lag": []})
    assert cli.main(["lag", "-o", "json", "--admin", listener.url.removeprefix("http://")]) == Exit.OK
    assert cli.main(["kv", "get", "b", "k", "--http", "127.0.0.1:9"]) == Exit.UNAVAILABLE
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["lag", "--over", "soon"], '"soon" is not a duration; write a number and a unit, such as "1s"'),
        (["lag", "--over", "nan"], "is not a duration"),
        (["status", "--watch", "--interval", "0.1"], "'0.1' is out of range; allowed is 500ms to 1h"),
        (["local", "up", "t", "--dir", "d", "--timeout", "2x"], 'there is no duration unit "x"'),
        (["queue", "set", "q", "--lease", "x"], "is not a duration"),
        (["queue", "peek", "q", "--count", "many"], "'many' is not a whole number; write digits"),
        (["queue", "throttle", "q", "--bytes", "5 bananas"], 'there is no size unit "bananas"'),
        (["sink", "throttle", "--bytes", "x"], "is not a size"),
        (["fold", "find-keys", "--size-over", "x"], "is not a size"),
        (["demo", "--rate", "fast"], "'fast' is not a number"),
        (["partition", "force-leader", "default", "n"], "write its number, or TYPE/INDEX, such as default/7"),
        (["fullsync", "trees", "--rebuild", "--partition", "-x"], "write its number, or TYPE/INDEX"),
    ],
)
def test_what_is_no_number_time_or_size_is_refused_in_plain_words(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    """The message has the value and the right form; no word of the library that reads options."""
    assert cli.main(arguments) == Exit.USAGE
    error = capsys.readouterr().err
    assert sentence in error
    assert "range." not in error


@pytest.mark.parametrize("written", ["2.5", "2.5s", "2500ms"])
def test_a_duration_is_written_alike_in_every_command(listener: FakeAdminListener, written: str) -> None:
    """With a unit, as in config files, or as a number of seconds, as monitoring plugins have it."""
    lag = {"cluster": "west", "uuid": "u", "queue": "q", "bucket_type": "default", "seconds": 2.6, "objects": 1}
    listener.respond("/admin/lag", {"lag": [lag]})
    listener.respond("/admin/gaps", {"gaps": []})
    assert cli.main(["lag", "--over", written]) == Exit.DIFFERS
    listener.respond("/admin/lag", {"lag": [{**lag, "seconds": 2.4}]})
    assert cli.main(["lag", "--over", written]) == Exit.OK


def test_no_option_takes_a_time_a_size_or_a_number_in_a_form_of_its_own() -> None:
    """Durations, sizes, partitions and numbers of all commands are read by the four types of `parameters`."""
    from tests.project.test_command_words import commands

    found = []
    for path, command in commands(cli.root):
        for each in command.params:
            kind = type(each.type)
            if kind in (click.types.IntParamType, click.types.FloatParamType, click.IntRange, click.FloatRange):
                found.append(f"{path} {each.name}: {kind.__name__}")
            text = kind is click.types.StringParamType and isinstance(each, click.Option)
            if text and ("SIZE" in str(each.metavar) or each.name in ("timeout", "interval", "lease", "settle")):
                found.append(f"{path} {each.name} is read as a text")
            if each.name == "partition" and kind is not PartitionParameter:
                found.append(f"{path} {each.name}: {kind.__name__}")
    assert found == []


def test_a_partition_is_named_by_its_number_or_by_its_place_in_a_bucket_type(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both are what `isthmus partition list` prints; TYPE/INDEX is looked up in the cluster."""
    rows = [{"index": index, "partition": 12 + index, "bucket_type": "notes"} for index in range(3)]
    listener.respond("/admin/partitions?bucket_type=notes", {"partitions": rows})
    listener.respond("/admin/partitions?bucket_type=none", {"partitions": []})
    plan = {"partition": 14, "version": 3, "epoch": 2, "replicas": [], "node": "n"}
    listener.respond("/admin/partitions/14/force-leader", plan)
    for name in ("14", "notes/2"):
        assert cli.main(["partition", "force-leader", name, "n", "--yes"]) == Exit.OK
    assert {path for path, _ in listener.posted} == {"/admin/partitions/14/force-leader"}
    capsys.readouterr()
    assert cli.main(["partition", "force-leader", "notes/3", "n", "--yes"]) == Exit.USAGE
    assert "there is no partition notes/3: notes has 3 partitions, the first is notes/0" in capsys.readouterr().err
    assert cli.main(["partition", "force-leader", "none/0", "n", "--yes"]) == Exit.USAGE
    assert "there is no bucket type none" in capsys.readouterr().err
