"""Tables in narrow terminals."""

from __future__ import annotations

import os
import sys

import pytest

from isthmus.node.cli import output

COLUMNS = ("partition", "replicas", "lag", "reason")
ROW = ("default/0", ["east-1", "east-2", "east-3"], 0, "east-2 is out of sync: the node is gone since a while")


def drawn(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of the table in a terminal of so many columns."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((width, 24)))
    output.echo_table(COLUMNS, [ROW])
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [100, 78, 60, 44])
def test_a_table_in_a_narrow_terminal_breaks_no_word(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns give way down to their longest word, the widest first, and the table keeps to the width."""
    lines = drawn(width, monkeypatch, capsys)
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert {"PARTITION", "REPLICAS", "default/0", "east-1,", "east-3", "out", "while"} <= words


def test_where_words_do_not_fit_the_table_is_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words are not broken: the table is wider than the terminal instead, and the terminal wraps it."""
    lines = drawn(20, monkeypatch, capsys)
    assert "PARTITION  REPLICAS  LAG  REASON" in lines[0]
    assert max(map(len, lines)) < 40


def test_a_word_that_is_longer_than_a_line_is_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value of a thousand letters makes no table of a thousand columns."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((60, 24)))
    output.echo_table(("key", "bytes"), [("k" * 1_000, 5)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.count("k") for line in lines) == 1_000
