"""Authorization at both listeners: the roles of tokens, and the role that each request needs.

A role includes others (`INCLUDES`). A path that is not listed here needs more rather than less: a request that changes
something through the admin API needs `application` unless its path is in OPERATE. Paths are matched as they were sent,
segment by segment as the router does, so that no other spelling of a path reaches a handler. Tokens are kept by
`repl.security.tokens`, logins of browsers by `node.http.sessions`.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import structlog

from isthmus.config.settings import TokenSettings
from isthmus.node.http.csrf import OF_BROWSERS, VIA
from isthmus.node.http.responses import Headers, RequestRefused
from isthmus.node.http.sessions import LoginSessions
from isthmus.repl.log_limit import LogLimit
from isthmus.repl.security.tokens import digest_of, is_among, watched_digests
from isthmus.repl.security.watched_files import ReloadingFile
from isthmus.repl.telemetry import Family, Sample

log = structlog.get_logger(__name__)


class TokenRole(StrEnum):
    """The role of a token; each has its file in [tokens]."""

    READ = "read"
    WRITE = "write"
    OPERATE = "operate"
    REPLICATE = "replicate"
    ADMIN = "admin"


INCLUDES: Final[Mapping[TokenRole, frozenset[TokenRole]]] = {
    TokenRole.READ: frozenset({TokenRole.READ}),
    TokenRole.WRITE: frozenset({TokenRole.READ, TokenRole.WRITE}),
    TokenRole.OPERATE: frozenset({TokenRole.READ, TokenRole.WRITE, TokenRole.OPERATE}),
    TokenRole.REPLICATE: frozenset({TokenRole.REPLICATE}),
    TokenRole.ADMIN: frozenset(TokenRole),
}
"""Role of a token -> the roles that it includes."""

HTTP_OPEN: Final[Mapping[str, frozenset[TokenRole]]] = {
    "nothing": frozenset(),
    "read": INCLUDES[TokenRole.READ],
    "write": INCLUDES[TokenRole.WRITE],
}
"""Roles that `tokens.http_open` grants to everybody."""

PROBES: Final = frozenset({b"/ping", b"/livez", b"/readyz"})
"""Paths of load balancers, which have no tokens. The answers reveal nothing of the cluster but why it is not ready."""

REPLICATION: Final = frozenset({b"queues", b"trees"})
"""First segments of the paths that only other clusters use."""

PUSH: Final = b"/batch/push"
"""Pushes of objects with their clocks, by sinks and batch jobs."""

REFERENCES: Final = b"queuename"
"""First segment of the paths of Riak's push of references, which operators use, too, and of Riak's fetch, which takes
changes out of a queue as sinks do."""

READING_POSTS: Final = frozenset({b"/batch/get"})
"""POST requests that only read; the body is the question."""

ACTING_GETS: Final[Mapping[bytes, TokenRole]] = {
    b"erase": TokenRole.ADMIN,
    b"rangerepair": TokenRole.OPERATE,
    b"rangerepl": TokenRole.OPERATE,
    b"reap": TokenRole.ADMIN,
}
"""First segments of the paths whose GETs change something, as Riak's do -> the role that they need: that of folds that
erase and reap, and that of pushes of references."""

READING_ROWS: Final = frozenset({b"/rows", b"/rows/changes", b"/rows/plan", b"/rows/queues"})
"""Reads of batch jobs. They reveal no more than a queue that begins at 0, so the role of fetching is enough."""

READING_TREES: Final = frozenset({b"/trees/roots", b"/trees/leaves", b"/trees/clocks"})
"""Comparisons by full-sync and batch jobs: hashes and clocks of keys, which a listing reveals, too."""

RIAK_TREES: Final = frozenset({b"cachedtrees", b"rangetrees"})
"""First segments of the paths by which a Riak compares, as READING_TREES."""

NODES: Final = frozenset({b"/cluster/nodes", b"/membership_request"})
"""The paths where sinks and clients, and a Riak's sinks, learn which nodes live."""

DASHBOARD: Final = b"/dashboard/"
"""Beginning of the dashboard's paths on `admin`. Its files are the same for everybody, and are needed to log in."""

LOGIN_LINKS: Final = b"/dashboard/links"
"""The request for a one-time login, which has the roles of the token that asks."""

SUPPORT: Final = b"/admin/support"
"""Log lines of all nodes: names of clients, of keys and of files are in them."""

OPERATE: Final[tuple[tuple[bytes, ...], ...]] = (
    (b"queues", b"*", b"suspend"),
    (b"queues", b"*", b"resume"),
    (b"queues", b"*", b"throttle"),
    (b"queues", b"*", b"push"),
    (b"sink", b"*"),
    (b"sink", b"dead-letters", b"retry"),
    (b"riaks", b"*"),
    (b"riaks", b"*", b"remove"),
    (b"riaks", b"*", b"seed"),
    (b"riaks", b"*", b"seed", b"stop"),
    (b"fullsync", b"*"),
    (b"moves",),
    (b"moves", b"cancel"),
    (b"nodes", b"drain"),
    (b"leaders", b"balance"),
    (b"bucket-types", b"*", b"properties", b"set"),
    (b"bucket-types", b"*", b"properties", b"unset"),
    (b"buckets", b"*", b"*", b"properties", b"set"),
    (b"buckets", b"*", b"*", b"properties", b"unset"),
)
"""Paths below /admin/ whose changes can be taken back; "*" is any one segment. All others need `application`."""

CHALLENGES: Final[Headers] = [
    (b"www-authenticate", b'Bearer realm="isthmus"'),
    (b"www-authenticate", b'Basic realm="isthmus"'),
]
"""A browser, or a client that supports passwords only, sends a token as the password of any user."""

CREDENTIAL_BYTES_MAX: Final = 1024
"""Longest Authorization header that is parsed; a longer one is no token."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_http_unauthorized_total": Family(
        "Requests refused because of a missing token or role, by listener and status.",
        "requests",
        "security",
        ("listener", "status"),
    ),
}
"""Name -> metric definition (see repl.telemetry)."""


READERS: Final = frozenset({TokenRole.READ})
ANYBODY: Final = frozenset(TokenRole)
"""Roles of which any one is enough; `ANYBODY` still needs a token."""


def only_reads(method: str, raw_path: bytes) -> bool:
    """Whether a request cannot change anything."""
    if raw_path in READING_POSTS:
        return True
    return method in ("GET", "HEAD") and raw_path.partition(b"/")[2].partition(b"/")[0] not in ACTING_GETS


def http_roles(method: str, raw_path: bytes) -> frozenset[TokenRole]:
    """The roles of which a request of the client API needs any one; none: it needs no token."""
    path = raw_path.rstrip(b"/") or b"/"  # `application` ignores a trailing slash, so this does, too
    if path in PROBES:
        return frozenset()
    parts = path.split(b"/")[1:]
    if path in READING_TREES or path in READING_ROWS or parts[0] in RIAK_TREES:
        return READERS | {TokenRole.REPLICATE}
    if parts[0] in REPLICATION or path == PUSH:
        return frozenset({TokenRole.REPLICATE})
    if parts[0] == REFERENCES:
        pushes = method not in ("GET", "HEAD")
        return frozenset({TokenRole.OPERATE, TokenRole.REPLICATE} if pushes else {TokenRole.REPLICATE})
    if path in NODES:
        return ANYBODY
    if method == "HEAD" and len(parts) >= 3 and parts[-2] == b"keys":
        return READERS | {TokenRole.REPLICATE}  # its clock, as /trees/clocks has it: `isthmus explain` asks so
    if parts[0] in ACTING_GETS:
        return frozenset({ACTING_GETS[parts[0]]})
    if method in ("GET", "HEAD") or path in READING_POSTS:
        return READERS
    count = len(parts)
    bucket_props = count == 3 and parts[0] == b"buckets" and parts[2] == b"props"
    typed_props = count in (3, 5) and parts[0] == b"types" and parts[-1] == b"props"
    old_props = count == 2 and parts[0] == b"riak" and method == "PUT"
    return frozenset({TokenRole.OPERATE if bucket_props or typed_props or old_props else TokenRole.WRITE})


def admin_roles(method: str, raw_path: bytes) -> frozenset[TokenRole]:
    """The roles of which a request of the admin API needs any one; none: it needs no token."""
    if raw_path in PROBES:
        return frozenset()
    if raw_path == LOGIN_LINKS:
        return READERS
    if raw_path == b"/" or raw_path.startswith(DASHBOARD):
        return frozenset()
    if raw_path.partition(b"?")[0] == SUPPORT:
        return frozenset({TokenRole.OPERATE})
    if method in ("GET", "HEAD"):
        return READERS
    parts = raw_path.split(b"/")[2:] if raw_path.startswith(b"/admin/") else []
    for known in OPERATE:
        if len(parts) == len(known) and all(k in (b"*", part) for k, part in zip(known, parts, strict=True)):
            return frozenset({TokenRole.OPERATE})
    return frozenset({TokenRole.ADMIN})


class TokenIdentity(NamedTuple):
    """A known token, without the token: its most powerful role, and the first digits of its digest, as in the line
    `sha256:` of a token file."""

    role: TokenRole
    digest: str


DIGEST_DIGITS: Final = 12
"""Hex digits of a digest that are recorded: enough to tell the tokens of a cluster apart."""


class Guard:
    """Authorizes requests of one listener: 401 without a known token, 403 without the role."""

    def __init__(self, listener: str, settings: TokenSettings, sessions: LoginSessions | None = None) -> None:
        """`listener` is "http" or "admin"; `sessions`: logins of browsers, if the listener has any. Raises BadConfig
        when a file cannot be used."""
        self.sessions = sessions
        self._listener = listener
        self._roles = http_roles if listener == "http" else admin_roles
        self._digests = [(INCLUDES[TokenRole(name)], watched_digests(path)) for name, path in settings.files.items()]
        self._open = HTTP_OPEN[settings.http_open] if listener == "http" else frozenset()
        self._metrics_open = settings.metrics_open
        self._in_force: list[tuple[bytes, ...]] = []
        self._grants: dict[bytes, frozenset[TokenRole]] = {}
        """Digest of a known token that was sent -> its roles, until a token file changes; at most one entry for each
        token of the files. An unknown token is compared each time, in constant time."""
        self.refused: dict[int, int] = {}
        self._log_limit = LogLimit()

    def watched(self) -> list[ReloadingFile[tuple[bytes, ...]]]:
        """The token files, for reloading."""
        return [watched for _, watched in self._digests]

    def check(self, method: str, raw_path: bytes, headers: Headers) -> None:
        """Check one request. Raises RequestRefused, 401 or 403."""
        wanted = self._roles(method, raw_path)
        if not wanted or wanted & self._open or (self._metrics_open and raw_path == b"/metrics"):
            return
        token = self.token_digest(headers)
        if token is not None:
            known, found = self._granted(token)
            if wanted & found:
                self._check_page(method, headers)
                return
            if known:
                self.count_refused(403)
                raise RequestRefused(403, "forbidden", f"this needs a token of the role {_who_may(wanted)}")
        self.count_refused(401)
        if self.sessions is not None and (self.sessions.shown(headers) or _of_dashboard(headers)):
            # Without challenges: a browser would ask for a password, where the page asks for a login.
            raise RequestRefused(401, "unauthorized", "this session is over; log in again")
        what = "no token was shown" if token is None else "the token that was shown is not known here"
        sentence = f"{what}; this needs one of the role {_who_may(wanted)} (Authorization: Bearer TOKEN)"
        raise RequestRefused(401, "unauthorized", sentence, list(CHALLENGES))

    def identify(self, headers: Headers) -> TokenIdentity | None:
        """The token of a request, or that its session stands for; None without one that is known."""
        digest = self.token_digest(headers)
        if digest is None:
            return None
        known, granted = self._granted(digest)
        if not known:
            return None
        role = max((role for role in TokenRole if INCLUDES[role] <= granted), key=lambda role: len(INCLUDES[role]))
        return TokenIdentity(role, f"sha256:{digest.hex()[:DIGEST_DIGITS]}")

    def token_digest(self, headers: Headers) -> bytes | None:
        """The digest of the token that a request shows, or that its session stands for; a token counts before a
        session. The token may be unknown."""
        if any(name == b"authorization" for name, _ in headers):
            token = token_of(headers)
            return None if token is None else digest_of(token)
        return None if self.sessions is None else self.sessions.token_of(headers)

    def roles_of(self, digest: bytes) -> frozenset[TokenRole]:
        """The roles of the token of this digest; none for an unknown one."""
        return self._granted(digest)[1]

    def _check_page(self, method: str, headers: Headers) -> None:
        """Check that a change under a session comes from a page, whose origin was checked before (`csrf`). Raises
        RequestRefused."""
        names = {name for name, _ in headers}
        if method not in ("GET", "HEAD") and b"authorization" not in names and not names & OF_BROWSERS:
            sentence = "a change under a session needs the browser's Origin or Sec-Fetch-Site; programs send a token"
            raise RequestRefused(403, "other-origin", sentence)

    def _granted(self, digest: bytes) -> tuple[bool, frozenset[TokenRole]]:
        in_force = [watched.current() for _, watched in self._digests]
        if in_force != self._in_force:
            self._in_force = in_force
            self._grants.clear()
        granted = self._grants.get(digest)
        if granted is not None:
            return True, granted
        known, granted = False, frozenset[TokenRole]()
        for (roles, _), digests in zip(self._digests, in_force, strict=True):
            if is_among(digest, digests):
                known, granted = True, granted | roles
        if known:
            self._grants[digest] = granted
        return known, granted

    def count_refused(self, status: int) -> None:
        """Count a refusal, and log one of them now and then."""
        self.refused[status] = self.refused.get(status, 0) + 1
        if (suppressed := self._log_limit.due(status)) is not None:
            log.warning("http.unauthorized", listener=self._listener, status=status, suppressed=suppressed)

    def samples(self) -> Iterator[Sample]:
        """Samples for Prometheus."""
        for status, count in self.refused.items():
            yield "isthmus_http_unauthorized_total", {"listener": self._listener, "status": str(status)}, count


def guard_of(listener: str, settings: TokenSettings, sessions: LoginSessions | None = None) -> Guard | None:
    """The guard of a listener; None without tokens, so that every request is allowed. Raises BadConfig."""
    return Guard(listener, settings, sessions) if settings.files else None


def _of_dashboard(headers: Headers) -> bool:
    """Whether a request comes from a page of the dashboard, which may have lost its cookie: it names itself, or is an
    event stream, to which a page cannot add headers."""
    return any(
        (name == VIA and value == b"dashboard") or (name == b"accept" and value == b"text/event-stream")
        for name, value in headers
    )


def _who_may(wanted: frozenset[TokenRole]) -> str:
    """The roles that would be enough, the least first."""
    return " or ".join(role.value for role, included in INCLUDES.items() if wanted & included)


def token_of(headers: Headers) -> bytes | None:
    """The token of a request. A request with two tokens has none, since it is not clear which one is meant."""
    shown = [value for name, value in headers if name == b"authorization"]
    if len(shown) != 1 or len(shown[0]) > CREDENTIAL_BYTES_MAX:
        return None
    scheme, _, value = shown[0].strip().partition(b" ")
    value = value.strip()
    if scheme.lower() == b"bearer":
        return value or None
    if scheme.lower() == b"basic":
        try:
            _, colon, password = b64decode(value, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        return password if colon and password else None
    return None
