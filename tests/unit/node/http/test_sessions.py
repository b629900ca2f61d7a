"""Logins of browsers: codes work once and for minutes, sessions end, and their number is limited."""

from __future__ import annotations

import pytest

from isthmus.node.http import sessions
from isthmus.node.http.sessions import CODE_LIFE_S, SESSION_LIFE_S, LoginSessions

TOKEN = b"d" * 32


class Clock:
    """Monotonic seconds that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """At 0 s."""
    return Clock()


@pytest.fixture
def logins(clock: Clock) -> LoginSessions:
    """The sessions of node n of cluster c."""
    return LoginSessions("isthmus-c-n", clock)


def cookie(secret: str) -> list[tuple[bytes, bytes]]:
    """The headers of a browser that has this node's cookie, between others."""
    return [(b"cookie", f"isthmus-c-m=other; isthmus-c-n={secret}; x=y".encode())]


def test_a_code_works_once_and_for_minutes(logins: LoginSessions, clock: Clock) -> None:
    """A code expires with its use and with its age; a wrong one is refused."""
    code = logins.new_code(TOKEN)
    assert logins.use_code("another") is None
    assert logins.use_code(code) == TOKEN
    assert logins.use_code(code) is None
    code = logins.new_code(TOKEN)
    clock.now_s += CODE_LIFE_S
    assert logins.use_code(code) is None


def test_a_session_stands_for_its_token_until_it_ends(logins: LoginSessions, clock: Clock) -> None:
    """The cookie gives the token's digest, until the logout or the end of the session; another cookie gives none."""
    ended, kept = logins.open(TOKEN), logins.open(b"e" * 32)
    assert logins.token_of(cookie(ended)) == TOKEN
    logins.end(cookie(ended))
    assert logins.token_of(cookie(ended)) is None
    assert logins.token_of([(b"cookie", f"isthmus-c-m={kept}".encode())]) is None
    assert logins.token_of([(b"cookie", b"isthmus-c-n=\xff" + kept.encode())]) is None
    clock.now_s += SESSION_LIFE_S - 1
    assert logins.token_of(cookie(kept)) == b"e" * 32
    clock.now_s += 1
    assert logins.token_of(cookie(kept)) is None


def test_the_oldest_session_and_code_give_way(logins: LoginSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limits the oldest ends; the others stay."""
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)
    monkeypatch.setattr(sessions, "CODES_MAX", 2)
    opened, codes = [logins.open(TOKEN) for _ in range(3)], [logins.new_code(TOKEN) for _ in range(3)]
    assert [logins.token_of(cookie(secret)) for secret in opened] == [None, TOKEN, TOKEN]
    assert [logins.use_code(code) for code in codes] == [None, TOKEN, TOKEN]


def test_the_cookie_is_out_of_reach_of_scripts_and_other_pages(logins: LoginSessions) -> None:
    """HttpOnly and SameSite=Strict always, Secure with TLS; a removal is over at once."""
    assert logins.set_cookie("s", secure=False) == b"isthmus-c-n=s; Path=/; HttpOnly; SameSite=Strict"
    assert logins.set_cookie("s", secure=True) == b"isthmus-c-n=s; Path=/; HttpOnly; SameSite=Strict; Secure"
    assert logins.set_cookie("", secure=False).endswith(b"; Max-Age=0")
