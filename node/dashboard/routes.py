"""Routes of the dashboard: its files, and the login of a browser.

The files are the same for everybody and need no token; what they show comes from the admin API, which does. A browser
logs in with a token, or with a one-time code that `isthmus dashboard` requests with one.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from isthmus.node.dashboard.files import DashboardFile, dashboard_files
from isthmus.node.http.application import HttpApplication, Request, json_reply
from isthmus.node.http.authorization import CREDENTIAL_BYTES_MAX, LOGIN_LINKS, Guard, TokenRole
from isthmus.node.http.json_body import BodyHandler
from isthmus.node.http.responses import Headers, Reply, RequestRefused
from isthmus.node.http.router import unknown_path
from isthmus.node.http.sessions import CODE_LIFE_S, LoginSessions
from isthmus.node.nouns.requests import JsonRequest
from isthmus.repl.security.tokens import digest_of

CONTENT_SECURITY_POLICY: Final = b"; ".join((
    b"default-src 'none'",
    b"script-src 'self'",
    b"style-src 'self'",
    b"connect-src 'self'",
    b"img-src 'self' data:",
    b"frame-ancestors 'none'",
    b"base-uri 'none'",
    b"form-action 'self'",
    b"require-trusted-types-for 'script'",
    b"trusted-types 'none'",
))  # fmt: skip
"""No inline script or style, nothing of another origin, no frame around it, and no text that becomes HTML."""

SECURITY_HEADERS: Final[Headers] = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]

REVALIDATE: Final = (b"cache-control", b"no-cache")
"""A browser keeps a file and asks at each load whether it is still the same: a 304 costs less than a version that is
mixed with another one after an upgrade."""

NEVER_STORED: Final = (b"cache-control", b"no-store")


class NewSessionRequest(JsonRequest, frozen=True, kw_only=True):
    """Log a browser in, by one of the two."""

    token: Annotated[str, msgspec.Meta(max_length=CREDENTIAL_BYTES_MAX)] | None = None
    code: Annotated[str, msgspec.Meta(max_length=CREDENTIAL_BYTES_MAX)] | None = None


class NewLinkRequest(JsonRequest, frozen=True, kw_only=True):
    """Make a one-time login."""


class SessionEndRequest(JsonRequest, frozen=True, kw_only=True):
    """Log out."""


class Dashboard:
    """The dashboard on the application of the `admin` listener."""

    def __init__(self, api: HttpApplication, guard: Guard | None, cluster: str, node: str) -> None:
        """Reads the files. `guard`: None without tokens, so that there is no login."""
        self._guard = guard
        self._names = {"cluster": cluster, "node": node}
        self._files = dashboard_files()
        router = api.router
        router.add("GET", "/", self.index)
        router.add("GET", "/dashboard/session", self.session)
        router.add("POST", "/dashboard/session", BodyHandler(NewSessionRequest, self.log_in))
        router.add("POST", "/dashboard/session/end", BodyHandler(SessionEndRequest, self.log_out))
        router.add("POST", LOGIN_LINKS.decode(), BodyHandler(NewLinkRequest, self.link))
        router.add("GET", "/dashboard/{folder}/{file}", self.file)

    async def index(self, request: Request) -> Reply:
        """The page."""
        return _served(self._files["index.html"], request)

    async def file(self, request: Request) -> Reply:
        """A file of the page."""
        found = self._files.get("/".join(request.params[part].decode("latin-1") for part in ("folder", "file")))
        if found is None:
            raise unknown_path(request.raw_path)
        return _served(found, request)

    async def session(self, request: Request) -> Reply:
        """Whether this listener needs a login, and the roles of the browser's session; null: it has none."""
        roles: list[str] | None = [role.value for role in TokenRole]
        if self._guard is not None:
            digest = self._guard.token_digest(request.headers)
            found = frozenset[TokenRole]() if digest is None else self._guard.roles_of(digest)
            roles = [role.value for role in TokenRole if role in found] or None
        return self._answer(roles)

    async def log_in(self, request: Request, body: NewSessionRequest) -> Reply:
        """Open a session with a token, or with a one-time code, which is used up by that."""
        guard, sessions = self._logins()
        if (body.token is None) == (body.code is None):
            raise RequestRefused(400, "bad-json", "a login needs either token or code")
        if body.token is not None:
            token: bytes | None = digest_of(body.token.strip().encode())
            sentence = "this token is not known here"
        else:
            token = sessions.use_code(body.code or "")
            sentence = "this login link was used before or is too old; `isthmus dashboard` makes another one"
        roles = frozenset[TokenRole]() if token is None else guard.roles_of(token)
        if token is None or TokenRole.READ not in roles:
            guard.count_refused(403 if roles else 401)
            if roles:
                raise RequestRefused(403, "forbidden", "the dashboard needs a token of the role read")
            raise RequestRefused(401, "unauthorized", sentence)
        sessions.end(request.headers)
        cookie = sessions.set_cookie(sessions.open(token), secure=request.secure)
        return self._answer([role.value for role in TokenRole if role in roles], [(b"set-cookie", cookie)])

    async def log_out(self, request: Request, _body: SessionEndRequest) -> Reply:
        """End the browser's session."""
        _, sessions = self._logins()
        sessions.end(request.headers)
        return self._answer(None, [(b"set-cookie", sessions.set_cookie("", secure=request.secure))])

    async def link(self, request: Request, _body: NewLinkRequest) -> Reply:
        """Make a one-time login for the token of this request. The code is in the link's fragment, which browsers send
        to no server."""
        guard, sessions = self._logins()
        token = guard.token_digest(request.headers)
        assert token is not None, "the guard has checked it"
        code = sessions.new_code(token)
        return json_reply({"path": f"/#login={code}", "expires_s": round(CODE_LIFE_S)})

    def _logins(self) -> tuple[Guard, LoginSessions]:
        if self._guard is None or self._guard.sessions is None:
            raise RequestRefused(409, "no-login", "this node has no tokens ([tokens]): the dashboard needs no login")
        return self._guard, self._guard.sessions

    def _answer(self, roles: list[str] | None, headers: Headers | None = None) -> Reply:
        value: dict[str, Any] = {**self._names, "login": self._guard is not None, "roles": roles}
        reply = json_reply(value)
        return reply._replace(headers=[*reply.headers, NEVER_STORED, *SECURITY_HEADERS, *(headers or [])])


def _served(file: DashboardFile, request: Request) -> Reply:
    headers = [*SECURITY_HEADERS, REVALIDATE, (b"etag", file.etag)]
    shown = request.header(b"if-none-match") or b""
    if file.etag in [each.strip().removeprefix(b"W/") for each in shown.split(b",")]:
        return Reply(304, headers)
    return Reply(200, [*headers, (b"content-type", file.content_type)], file.body)
