"""Unforeseen exceptions are logged with limits, counted, and kept for findings; taking note of one never raises."""

from __future__ import annotations

import pytest
import structlog

from isthmus.repl.log_limit import INTERVAL_S, LogLimit
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import InternalError
from isthmus.repl.unforeseen import FINDING_MS, KEPT_MAX, UnforeseenErrors, observes


class Mute(Exception):
    def __str__(self) -> str:
        raise OSError("not shown")


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001
        return caught


def test_a_defect_is_logged_once_an_interval_counted_always_and_found() -> None:
    """The traceback is in the first line; the item gets an answer with a code; a finding says what ended, how often and
    where."""
    now_s = 0.0
    errors = UnforeseenErrors(LogLimit(lambda: now_s))
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            answer = errors.exception("push.bug", raised(KeyError("x")), partition=3)
        now_s = INTERVAL_S
        errors.exception("push.bug", raised(KeyError("x")), partition=4)
    assert [(line["event"], line["partition"], line["suppressed"]) for line in lines] == [
        ("push.bug", 3, 0),
        ("push.bug", 4, 2),
    ]
    assert isinstance(lines[0]["exc_info"], KeyError)
    assert isinstance(answer, InternalError)
    assert answer.reason == "internal"
    assert answer.__traceback__ is answer.__cause__ is answer.__context__ is None
    assert list(errors.samples()) == [("isthmus_unforeseen_errors_total", {"event": "push.bug"}, 4)]
    (defect,) = errors.recent()
    assert defect.times == 4
    assert defect.sentence.startswith(
        "a defect of this program ended push.bug 4 times, in unit/repl/test_unforeseen.py:"
    )
    assert defect.sentence.endswith(": 'x'")


def test_an_exception_that_cannot_be_shown_is_taken_note_of() -> None:
    """Its kind stands for it."""
    errors = UnforeseenErrors()
    with structlog.testing.capture_logs():
        assert "Mute" in str(errors.exception("a.bug", Mute()))
    assert errors.recent()[0].sentence == "a defect of this program ended a.bug once, in an unknown place: Mute"


def test_defects_are_kept_within_a_limit_and_for_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first; one that no longer occurs is no finding after a day, and counts for ever."""
    errors = UnforeseenErrors()
    with structlog.testing.capture_logs():
        for number in range(KEPT_MAX + 3):
            errors.exception(f"number.{number}", KeyError())
    assert len(errors.recent()) == KEPT_MAX
    assert errors.recent()[0].event == "number.3"
    later_ns = (errors.recent()[-1].last_ms + FINDING_MS + 1) * 1_000_000
    monkeypatch.setattr(machine(), "wall_ns", lambda: later_ns)
    assert errors.recent() == []
    assert len(list(errors.samples())) == KEPT_MAX + 3


def test_an_observer_that_fails_ends_nothing() -> None:
    """Its caller gets None, and the failure is logged."""

    @observes("traces.failed")
    def looks(at: str) -> int:
        return int(at)

    assert looks("3") == 3
    with structlog.testing.capture_logs() as lines:
        assert looks("x") is None
    assert [line["event"] for line in lines] == ["traces.failed"]
