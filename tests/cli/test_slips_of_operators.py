"""What an operator's slips are answered with: one line that says what is wrong and what would be right."""

from __future__ import annotations

import pytest

from node.cli import main as cli
from node.cli.exits import Exit
from tests.cli.test_remote_commands import ToldListener, listener

__all__ = ["listener"]


def test_a_noun_that_is_not_known_is_told_with_one_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The nouns are imported when they are used, and are suggested all the same."""
    assert cli.main(["que", "list"]) == Exit.USAGE
    assert "Did you mean 'queue'?" in capsys.readouterr().err


def test_a_queue_that_is_not_there_is_told_with_those_that_are(
    listener: ToldListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """`queue show` finds it in what the node lists, so it says what that is."""
    listener.tell("/admin/queues", {"queues": [{"name": "to-west"}, {"name": "to-north"}]})
    assert cli.main(["queue", "show", "to-wset"]) == Exit.REFUSED
    assert 'did you mean "to-west"?' in capsys.readouterr().err
    assert cli.main(["queue", "show", "x"]) == Exit.REFUSED
    assert "known here: to-west, to-north" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        ({"closed": 2, "unknown": []}, Exit.OK, ""),
        ({"closed": 2, "unknown": ["e3"]}, Exit.OK, ""),
        ({"closed": 1, "unknown": []}, Exit.DIFFERS, "1 of 2 not closed: no such gap, or one that still grows"),
        ({"closed": 1, "unknown": ["e3"]}, Exit.UNAVAILABLE, "1 of 2 not closed, and e3 does not answer"),
    ],
)
def test_gaps_that_were_not_closed_are_told(
    listener: ToldListener, capsys: pytest.CaptureFixture[str], answer: object, code: Exit, sentence: str
) -> None:
    """Nobody takes a gap for closed that is not there, that grows, or whose node is silent."""
    listener.tell("/admin/queues/q/gaps/close", answer)
    assert cli.main(["queue", "gaps", "q", "--close", "4:1", "--close", "5:1", "--close", "5:1"]) == code
    assert sentence in capsys.readouterr().err


def test_dead_letters_that_are_not_there_are_told(listener: ToldListener, capsys: pytest.CaptureFixture[str]) -> None:
    """Letters lie on the node that fetched them: who drops one at another node is told."""
    listener.tell("/admin/sink/dead-letters/drop", {"dropped": 1})
    assert cli.main(["sink", "dead-letters", "drop", "4"]) == Exit.OK
    assert cli.main(["sink", "dead-letters", "drop", "--all"]) == Exit.OK
    assert capsys.readouterr().err == ""
    assert cli.main(["sink", "dead-letters", "drop", "4", "5"]) == Exit.OK
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == "dropped: 1"
    assert "1 of 2 are not kept by this node" in shown.err


def test_a_queue_of_nobody_is_no_unknown(listener: ToldListener, capsys: pytest.CaptureFixture[str]) -> None:
    """That no cluster has fetched yet is known; "unknown" stands for what could not be found out."""
    lag = {"queue": "q", "cluster": None, "uuid": None, "bucket_type": "notes", "seconds": 0.0, "objects": 0,
           "bytes": 0, "proven_ms": None, "reason": ""}  # fmt: skip
    listener.tell("/admin/lag", {"lag": [lag]})
    listener.tell("/admin/gaps", {"gaps": []})
    assert cli.main(["lag"]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[-1].startswith("nobody yet")
    sent = {"direction": "sent", "queue": "q", "cluster": None, "uuid": None, "state": "closed", "reason": ""}
    listener.tell("/admin/ledger", {"ledger": [sent]})
    assert cli.main(["ledger"]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[-1].startswith("nobody yet")
