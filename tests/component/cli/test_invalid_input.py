"""Invalid input of operators: one line that names the error and a valid form."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.services.remote_lookup import other_side
from isthmus.repl.model.keys import Key
from isthmus.repl.model.vclock import encode_clock
from tests.support.fake_admin_listener import FakeAdminListener


def test_an_unknown_command_is_reported_with_a_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Nouns are imported when they are used, but are suggested anyway."""
    assert cli.main(["que", "list"]) == Exit.USAGE
    assert "Did you mean 'queue'?" in capsys.readouterr().err


def test_a_queue_that_is_not_there_is_reported_with_those_that_are(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """`queue show` searches the node's list, so its error prints that list."""
    queues = [{"name": "to-west"}, {"name": "to-north"}]
    listener.respond("/admin/queues/nodes", {"nodes": [{"node": "n", "queues": queues}]})
    assert cli.main(["queue", "show", "to-wset"]) == Exit.REFUSED
    assert 'did you mean "to-west"?' in capsys.readouterr().err
    assert cli.main(["queue", "show", "x"]) == Exit.REFUSED
    assert "known here: to-north, to-west" in capsys.readouterr().err


def test_where_a_queue_begins_is_a_time_or_one_of_two_words(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence about a wrong time names the two words, too; nothing is sent."""
    assert cli.main(["queue", "release", "q", "--from", "soon", "--yes"]) == Exit.USAGE
    shown = capsys.readouterr().err
    assert "--from: 'soon' is not a time" in shown
    assert shown.endswith("; or 0, or now\n")
    assert listener.posted == []


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        ({"closed": 2, "unknown": []}, Exit.OK, ""),
        ({"closed": 2, "unknown": ["e3"]}, Exit.OK, ""),
        ({"closed": 1, "unknown": []}, Exit.DIFFERS, "1 of 2 not closed: no such gap, or one that still grows"),
        ({"closed": 1, "unknown": ["e3"]}, Exit.UNAVAILABLE, "1 of 2 not closed, and e3 does not answer"),
    ],
)
def test_gaps_that_were_not_closed_are_reported(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], answer: object, code: Exit, sentence: str
) -> None:
    """A gap that does not exist, that grows, or whose node is silent is not reported as closed."""
    listener.respond("/admin/queues/q/gaps/close", answer)
    assert cli.main(["queue", "gaps", "q", "--close", "4:1", "--close", "5:1", "--close", "5:1"]) == code
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.out in ("queue q: 1 gap closed\n", "queue q: 2 gaps closed\n")


def test_dead_letters_that_are_not_there_are_reported(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Letters lie on the node that fetched them: a drop at another node is an error."""
    listener.respond("/admin/sink/dead-letters/drop", {"dropped": 1})
    assert cli.main(["sink", "dead-letters", "drop", "4"]) == Exit.OK
    listener.respond("/admin/sink/dead-letters", {"dead_letters": [{"id": 4}]})
    assert cli.main(["sink", "dead-letters", "drop", "--all", "--yes"]) == Exit.OK
    assert capsys.readouterr().err == ""
    assert cli.main(["sink", "dead-letters", "drop", "4", "5"]) == Exit.OK
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == "dropped: 1"
    assert "1 of 2 are not kept by this node" in shown.err


def test_a_queue_without_owner_is_not_unknown(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue from which no cluster has fetched yet is shown as such; "unknown" means that the state could not be
    determined."""
    lag = {"queue": "q", "cluster": None, "uuid": None, "bucket_type": "notes", "seconds": 0.0, "objects": 0,
           "bytes": 0, "proven_ms": None, "reason": ""}  # fmt: skip
    listener.respond("/admin/lag", {"lag": [lag]})
    listener.respond("/admin/gaps", {"gaps": []})
    assert cli.main(["lag"]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[-1].startswith("none yet")
    sent = {"direction": "sent", "queue": "q", "cluster": None, "uuid": None, "state": "closed", "reason": ""}
    listener.respond("/admin/ledger", {"ledger": [sent]})
    assert cli.main(["ledger"]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[-1].startswith("none yet")


def test_a_limit_and_none_at_once_is_refused(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The contradiction is refused; a single reference is reported in the singular."""
    for words in (["--bytes", "10MB", "--default"], ["--objects", "5", "--off"], ["--off", "--default"], []):
        assert cli.main(["queue", "throttle", "q", *words]) == Exit.USAGE
        assert "or --off; or --default" in capsys.readouterr().err
    assert not listener.posted
    listener.respond("/admin/queues/q/push", {"queued": 1, "refused": 0, "reason": ""})
    assert cli.main(["queue", "push", "q", "default/b", "k"]) == Exit.OK
    assert capsys.readouterr().out == "queue q: 1 reference queued\n"


@pytest.mark.parametrize("noun", [["queue", "suspend", "q"], ["sink", "suspend"], ["fullsync", "suspend"]])
def test_all_nodes_may_be_given_but_not_with_one_node(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], noun: list[str]
) -> None:
    """--all-nodes is the default; together with --node it is refused, in either order."""
    for path in ("queues/q", "sink", "fullsync"):
        listener.respond(f"/admin/{path}/suspend", {"acted": {}})
    assert cli.main([*noun, "--all-nodes"]) == Exit.OK
    assert listener.posted[-1][1]["node"] is None
    assert cli.main([*noun, "--node", "e1"]) == Exit.OK
    assert listener.posted[-1][1]["node"] == "e1"
    for both in (["--node", "e1", "--all-nodes"], ["--all-nodes", "--node", "e1"]):
        assert cli.main([*noun, *both]) == Exit.USAGE
        assert "--node and --all-nodes contradict each other" in capsys.readouterr().err
    assert len(listener.posted) == 2


@pytest.mark.parametrize("noun", ["queue", "sink"])
def test_a_listing_is_of_all_nodes_without_an_option_for_it(capsys: pytest.CaptureFixture[str], noun: str) -> None:
    """--all is no option of a listing."""
    assert cli.main([noun, "list", "--all"]) == Exit.USAGE
    assert "No such option '--all'" in capsys.readouterr().err


def test_limits_of_a_queue_are_given_when_it_is_registered(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The three bounds that a config file sets are there at run time, too; a size that is none is refused."""
    listener.respond("/admin/queues/register", {"queues": []})
    bounds = ["--queue-limit", "9", "--object-limit", "0", "--object-size-limit", "2KB"]
    assert cli.main(["queue", "register", "q", *bounds]) == Exit.OK
    wish = listener.posted[-1][1]
    assert (wish["queue_limit"], wish["object_limit"], wish["object_size_limit"]) == (9, 0, 2_000)
    assert cli.main(["queue", "register", "q", "--object-size-limit", "much"]) == Exit.USAGE
    assert "--object-size-limit" in capsys.readouterr().err


@contextmanager
def answering_404(reason: str, *headers: tuple[str, str]) -> Iterator[str]:
    """The URL of a listener that answers all with 404 and this reason, none when it is empty."""

    class NotFoundHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_HEAD()
            self.wfile.write(b"{}")

        def do_HEAD(self) -> None:
            self.send_response(404)
            if reason:
                self.send_header("X-Isthmus-Reason", reason)
            for header in headers:
                self.send_header(*header)
            self.send_header("Content-Length", "2")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Keep the server's log off standard error."""

    server = HTTPServer(("127.0.0.1", 0), NotFoundHandler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_unknown_local_state_does_not_count_as_behind() -> None:
    """When this cluster's object of a key is unknown, the comparison is unknown, and the other side's clock is shown.
    When the key is known to be absent here, the other side is ahead."""
    clock = encode_clock(((b"a" * 20, 1, 0),))
    with answering_404("not-found", ("X-Riak-Vclock", b64encode(clock).decode())) as url:
        unknown = other_side(url, Key(b"default", b"b", b"k"), None, known=False)
        absent = other_side(url, Key(b"default", b"b", b"k"), None)
    assert (unknown["state"], unknown["clock"]) == ("unknown", clock.hex())
    assert "unknown" in unknown["reason"]
    assert absent["state"] == "ahead"


def test_a_tombstone_there_is_equal_to_nothing_here() -> None:
    """A tombstone reaped here and not there is no difference to full-sync, so explain reports none. A tombstone that
    this side has not seen is still ahead of a value."""
    clock = encode_clock(((b"a" * 20, 2, 0),))
    told = ("X-Riak-Vclock", b64encode(clock).decode()), ("X-Riak-Deleted", "true")
    with answering_404("not-found", *told) as url:
        found = other_side(url, Key(b"default", b"b", b"k"), None)
        behind = other_side(url, Key(b"default", b"b", b"k"), ((b"a" * 20, 1, 0),))
    assert (found["state"], found["clock"]) == ("equal", clock.hex())
    assert "deleted on both sides" in found["reason"]
    assert behind["state"] == "ahead"


def test_why_the_other_side_does_not_answer_is_reported_in_words() -> None:
    """The name of an exception would hide an expired certificate, or that nothing listens there."""
    key = Key(b"default", b"b", b"k")
    with answering_404("") as url:
        plain = other_side(url.replace("http://", "https://"), key, None)
    assert plain["reason"] == "it does not answer: TLS: the other end does not speak TLS"
    gone = other_side(url, key, None)
    assert gone["reason"].endswith("[Errno 111] Connection refused")


@pytest.mark.parametrize("reason", ["unknown-path", ""])
def test_single_values_asked_of_no_client_listener_are_reported(
    reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The admin port is the most likely mistake: the error is one sentence, not that listener's own answer."""
    with answering_404(reason) as url:
        assert cli.main(["kv", "get", "b", "k", "--http", url]) == Exit.UNAVAILABLE
    said = capsys.readouterr().err
    assert "is this a node's client listener?" in said
    assert "{" not in said


@pytest.mark.parametrize(
    ("reason", "state"),
    [("not-found", "absent"), ("unknown-path", "unknown"), ("unknown-bucket-type", "unknown"), ("", "unknown")],
)
def test_only_a_node_that_answers_so_lacks_the_key(reason: str, state: str) -> None:
    """Another 404 comes from a listener that is not a client listener, or from a cluster without the bucket type: it
    does not show that the key is absent."""
    with answering_404(reason) as url:
        found = other_side(url, Key(b"default", b"b", b"k"), None)
    assert found["state"] == state
    assert state == "absent" or found["reason"].endswith("which does not show whether it has the key")
