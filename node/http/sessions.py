"""Logins of browsers: one-time codes, and sessions that stand for a token.

A browser gets a session for a token, or for a one-time code that was made with a token; its cookie has a random secret.
A session keeps the token's digest, not roles: it can do what the token can at that moment, and ends with the token.
All of it is in this node's memory, so that a restart ends every session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from isthmus.node.http.responses import Headers
from isthmus.repl.machine import monotonic_s, random_text
from isthmus.repl.security.tokens import digest_of

CODE_LIFE_S: Final = 300.0
"""Seconds for which a one-time code can be used: enough to copy an address from one screen to another."""

CODES_MAX: Final = 32
"""One-time codes that wait to be used; one more drops the oldest. Operators need one or two at a time."""

SESSION_LIFE_S: Final = 12 * 3600.0
"""Seconds after which a browser must log in again, used or not: a working day. A guess."""

SESSIONS_MAX: Final = 256
"""Sessions of a node; one more ends the oldest. More than people who look at one node, at 200 bytes each."""

COOKIE_BYTES_MAX: Final = 4096
"""Longest Cookie header that is parsed, as long as browsers let one cookie be; a longer one has no session."""

SECRET_BYTES: Final = 32
"""Random bytes of a code or cookie; nobody guesses one in its life, so that failed tries need no limit."""


class _Grant(NamedTuple):
    """A token's digest, and until when (monotonic s) a code or session stands for it."""

    token: bytes
    until_s: float


class LoginSessions:
    """One-time codes and sessions of one listener. Secrets are kept as digests, as tokens are."""

    def __init__(self, cookie: str, clock_s: Callable[[], float] = monotonic_s) -> None:
        """`cookie`: the cookie's name. Browsers share cookies between the ports of a host, so it differs by node."""
        self.cookie = cookie.encode("ascii")
        self._clock_s = clock_s
        self._codes: dict[bytes, _Grant] = {}
        self._sessions: dict[bytes, _Grant] = {}

    def new_code(self, token: bytes) -> str:
        """A code that opens one session for the token of this digest, within CODE_LIFE_S."""
        return self._grant(self._codes, CODES_MAX, token, CODE_LIFE_S)

    def use_code(self, code: str) -> bytes | None:
        """The digest of the token that the code was made with; None for an unknown, used or expired code."""
        grant = self._codes.pop(_key(code), None)
        return grant.token if grant is not None and self._clock_s() < grant.until_s else None

    def open(self, token: bytes) -> str:
        """Open a session for the token of this digest; returns the cookie's value."""
        return self._grant(self._sessions, SESSIONS_MAX, token, SESSION_LIFE_S)

    def token_of(self, headers: Headers) -> bytes | None:
        """The digest of the token that the request's session stands for; None without a session."""
        for secret in self.shown(headers):
            grant = self._sessions.get(_key(secret))
            if grant is not None:
                if self._clock_s() < grant.until_s:
                    return grant.token
                del self._sessions[_key(secret)]
        return None

    def end(self, headers: Headers) -> None:
        """End the request's session."""
        for secret in self.shown(headers):
            self._sessions.pop(_key(secret), None)

    def shown(self, headers: Headers) -> list[str]:
        """The values of this listener's cookie in a request, known or not."""
        found = []
        for name, value in headers:
            if name == b"cookie" and len(value) <= COOKIE_BYTES_MAX:
                for part in value.split(b";"):
                    cookie, _, secret = part.strip().partition(b"=")
                    if cookie == self.cookie:
                        found.append(secret.decode("latin-1"))
        return found

    def set_cookie(self, secret: str, *, secure: bool) -> bytes:
        """The Set-Cookie of a session, or with an empty secret its removal. It lasts as long as the browser runs: a
        session that expires is refused here."""
        parts = [self.cookie + b"=" + secret.encode("ascii"), b"Path=/", b"HttpOnly", b"SameSite=Strict"]
        parts += [b"Secure"] * secure + [b"Max-Age=0"] * (not secret)
        return b"; ".join(parts)

    def _grant(self, grants: dict[bytes, _Grant], limit: int, token: bytes, life_s: float) -> str:
        while len(grants) >= limit:
            del grants[next(iter(grants))]
        secret = random_text(SECRET_BYTES)
        grants[_key(secret)] = _Grant(token, self._clock_s() + life_s)
        return secret


def _key(secret: str) -> bytes:
    return digest_of(secret.encode(errors="replace"))
