"""The lines of the audit log: which requests are acts of operators, and what is recorded of each.

`HttpApplication` passes every request to a route with another method than GET and HEAD through `AuditTrail.watch`,
unless the route is listed in NOT_ACTS. A new route is recorded without anything to do; a test asserts that ACTS has
words for it. Handlers add values before and after by `Request.changed`. `node.observability.journal` writes the
lines; docs/what-happened.md has their keys.

Requests without a known token and those of foreign web pages are not recorded, since anybody could push the acts of
operators out of the log by sending them; `isthmus_http_unauthorized_total` counts the former.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from isthmus.node.http.application import (
    NOBODY,
    PEER_NAMES,
    ClientGone,
    Request,
    RoutedHandler,
    Scope,
    Stream,
    UnreadBody,
    shown_path,
)
from isthmus.node.http.authorization import Guard, token_of
from isthmus.node.http.csrf import OF_BROWSERS, VIA
from isthmus.node.http.responses import Headers, Reply, RequestRefused, explanation, status_of
from isthmus.node.http.router import Router
from isthmus.node.nouns.nouns import NOUNS
from isthmus.node.nouns.requests import WORDS_MAX, JsonRequest
from isthmus.node.observability.line_files import utc_text
from isthmus.repl.model.errors import IsthmusError, OutcomeUnknown
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.security.tls import shown_address
from isthmus.repl.unforeseen import unforeseen

ACTS: Final[Mapping[tuple[str, str], str]] = {
    ("POST", "/admin/bucket-types/{name}/replication-factor"): "change replication factor of bucket type {name}",
    **{("POST", noun.act_path(act)): act.audited for noun in NOUNS for act in noun.acts if act.audited},
    ("POST", "/admin/bucket-types/{type}/properties/set"): "set properties of bucket type {type}",
    ("POST", "/admin/bucket-types/{type}/properties/unset"): "unset properties of bucket type {type}",
    ("POST", "/admin/buckets/{type}/{bucket}/properties/set"): "set properties of bucket {type}/{bucket}",
    ("POST", "/admin/buckets/{type}/{bucket}/properties/unset"): "unset properties of bucket {type}/{bucket}",
    ("POST", "/admin/reaps"): "reap a tombstone",
    ("POST", "/admin/cluster/reseed"): "reseed the partition records",
    ("POST", "/admin/leaders/balance"): "balance leaders",
    ("POST", "/admin/moves"): "order a reassignment",
    ("POST", "/admin/moves/cancel"): "cancel a reassignment",
    ("POST", "/admin/nodes/drain"): "drain nodes",
    ("POST", "/admin/folds"): "run a page of a fold",
    ("PUT", "/buckets/{bucket}/props"): "set properties of bucket default/{bucket}",
    ("DELETE", "/buckets/{bucket}/props"): "unset properties of bucket default/{bucket}",
    ("PUT", "/types/{type}/buckets/{bucket}/props"): "set properties of bucket {type}/{bucket}",
    ("DELETE", "/types/{type}/buckets/{bucket}/props"): "unset properties of bucket {type}/{bucket}",
    ("PUT", "/types/{type}/props"): "set properties of bucket type {type}",
    ("PUT", "/riak/{bucket}"): "set properties of bucket default/{bucket}",
    ("POST", "/queuename/{queue}"): "push references into queue {queue}",
    ("GET", "/erase/buckets/{bucket}"): "erase keys of bucket default/{bucket}",
    ("GET", "/erase/types/{type}/buckets/{bucket}"): "erase keys of bucket {type}/{bucket}",
    ("GET", "/reap/buckets/{bucket}"): "reap tombstones of bucket default/{bucket}",
    ("GET", "/reap/types/{type}/buckets/{bucket}"): "reap tombstones of bucket {type}/{bucket}",
    ("GET", "/rangerepair/buckets/{bucket}"): "repair keys of bucket default/{bucket}",
    ("GET", "/rangerepair/types/{type}/buckets/{bucket}"): "repair keys of bucket {type}/{bucket}",
    ("GET", "/rangerepl/buckets/{bucket}/queuename/{queue}"): "push keys of bucket default/{bucket} into queue {queue}",
    ("GET", "/rangerepl/types/{type}/buckets/{bucket}/queuename/{queue}"): (
        "push keys of bucket {type}/{bucket} into queue {queue}"
    ),
}
"""(method, pattern) of an act -> its words, with the names of the path."""

NOT_ACTS: Final[Mapping[tuple[str, str], str]] = {
    **{("POST", noun.act_path(act)): "reads" for noun in NOUNS for act in noun.acts if not act.audited},
    ("POST", "/dashboard/session"): "login",
    ("POST", "/dashboard/session/end"): "logout",
    ("POST", "/dashboard/links"): "login",
    ("POST", "/batch/get"): "reads",
    ("POST", "/rows"): "reads",
    ("POST", "/rows/changes"): "reads",
    ("POST", "/trees/roots"): "reads",
    ("POST", "/trees/leaves"): "reads",
    ("POST", "/trees/clocks"): "reads",
    ("POST", "/trees/repair"): "another cluster's full-sync",
    ("POST", "/queues/{queue}/fetch"): "another cluster's sink",
    ("POST", "/queues/{queue}/object"): "another cluster's sink",
    ("POST", "/queues/{queue}/counters"): "another cluster's sink",
    ("POST", "/batch/put"): "data",
    ("POST", "/batch/push"): "data",
    ("POST", "/buckets/{bucket}/keys"): "data",
    ("POST", "/types/{type}/buckets/{bucket}/keys"): "data",
    ("POST", "/riak/{bucket}"): "data",
}
"""(method, pattern) of a request that is no act of an operator -> why. Objects are no routes: see ClientApi."""

WAYS: Final = {b"cli": "cli", b"dashboard": "dashboard"}

VALUE_BYTES_MAX: Final = 4_000
"""Most bytes of the request's body, and of the values before and after, as JSON; of a larger one the beginning is
recorded (`{"start", "bytes"}`). Lists of ten thousand keys or partitions have no place in a log of acts."""

ACT_CHARS_MAX: Final = 300
"""Most characters of an act in words."""

DETAIL_CHARS_MAX: Final = 60
"""Most characters of one value in the words of an act."""

ERROR_CHARS_MAX: Final = 1_000

DEPTH_MAX: Final = 16
"""Deepest nesting of a recorded value; replica maps and properties have three levels."""

SECRET_CHARS_MIN: Final = 16
"""Shortest credential that is looked for in the texts of a line: tokens have that many, and shorter ones are words."""

REDACTED: Final = "(redacted)"

_SECRET: Final = re.compile(r"token|passw|secret|credential|authorization|private|api_?key", re.IGNORECASE)
"""Names of values that are never recorded; a name that ends in `_file` is that of a path."""

_USERINFO: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class AuditLines(Protocol):
    """Where the lines go (`node.observability.journal.Journal`)."""

    async def append(self, line: dict[str, Any]) -> None:
        """Write a line; returns when it is on the disk or lost, after a bounded time."""

    def enqueue(self, line: dict[str, Any]) -> object:
        """Write a line soon."""


class Outcome(NamedTuple):
    """How an act ended. `outcome`: "done", "refused" (nothing was changed, as far as is known) or "unknown"."""

    outcome: str
    status: int | None
    error: str | None


class AuditTrail:
    """Makes the lines of one listener. Implements `application.RequestAudit`."""

    def __init__(self, node: str, lines: AuditLines, time: TimeSource, guard: Guard | None) -> None:
        self._node = node
        self._lines = lines
        self._time = time
        self._guard = guard

    def is_act(self, method: str, pattern: str) -> bool:
        """See RequestAudit."""
        if method in ("GET", "HEAD"):
            return (method, pattern) in ACTS
        return (method, pattern) not in NOT_ACTS

    async def watch(
        self, scope: Scope, pattern: str, request: Request, handled: Awaitable[Reply | Stream]
    ) -> Reply | Stream:
        """See RequestAudit. The answer waits until the line is on the disk, for a bounded time."""
        try:
            reply = await handled
        except ClientGone:  # the body was cut short, so that nothing was done
            raise
        except asyncio.CancelledError:
            self._lines.enqueue(self._line(scope, pattern, request, Outcome("unknown", None, "the node stopped")))
            raise
        except BaseException as error:
            await self._append(scope, pattern, request, _outcome_of(error))
            raise
        done = "done" if reply.status < 400 else "refused"
        await self._append(scope, pattern, request, Outcome(done, reply.status, None))
        return reply

    async def forbidden(self, scope: Scope, router: Router[RoutedHandler], error: RequestRefused) -> None:
        """See RequestAudit. The module explains why requests without a known token (401) are not recorded."""
        method: str = scope["method"]
        if error.status != 403:
            return
        try:
            match = router.match(method, scope["raw_path"].rstrip(b"/"))
        except RequestRefused:  # no such route
            return
        if self.is_act(method, match.pattern):
            line = self._act(scope, match.pattern, match.params, None, _outcome_of(error))
            await self._lines.append(line)

    async def local(self, act: str, via: str, error: str | None) -> None:
        """Record an act that came without a request, as by a signal. `error`: what was not carried out, and why."""
        outcome = Outcome("done" if error is None else "unknown", None, error)
        what = {"act": act, "route": None, "path": None, "request": None}
        nobody = {"by": None, "role": None, "token": None, "certificate": None}
        await self._lines.append(self._document(nobody, None, via, what, outcome))

    async def _append(self, scope: Scope, pattern: str, request: Request, outcome: Outcome) -> None:
        if not (isinstance(request.model, JsonRequest) and request.model.only_reads()):
            await self._lines.append(self._line(scope, pattern, request, outcome))

    def _line(self, scope: Scope, pattern: str, request: Request, outcome: Outcome) -> dict[str, Any]:
        """The line of an act. Never raises: one whose values cannot be shown has route and outcome alone."""
        try:
            return self._whole_line(scope, pattern, request, outcome)
        except Exception as error:
            unforeseen.exception("audit.line_failed", error, route=f"{scope['method']} {pattern}")
            words = ACTS.get((scope["method"], pattern), pattern)
            what = {"act": f"{words} (its values cannot be shown)", "route": f"{scope['method']} {pattern}"}
            nobody = {"by": None, "role": None, "token": None, "certificate": None}
            shown = outcome._replace(error=None)  # its text may name a secret
            return self._document(nobody, None, "http", {**what, "path": None, "request": None}, shown)

    def _whole_line(self, scope: Scope, pattern: str, request: Request, outcome: Outcome) -> dict[str, Any]:
        line = self._act(scope, pattern, request.params, request.document, outcome)
        secret = _secret_of(scope["headers"])
        line["before"], line["after"] = (bounded(redacted(v, secret)) for v in (request.before, request.after))
        return line

    def _act(
        self, scope: Scope, pattern: str, params: Mapping[str, bytes], document: object, outcome: Outcome
    ) -> dict[str, Any]:
        headers: Headers = scope["headers"]
        secret = _secret_of(headers)
        body = document if isinstance(document, dict) else {}
        by, reason = (_words(redacted(body.get(name), secret)) for name in ("by", "reason"))
        shown = redacted(
            {k: v for k, v in body.items() if k not in ("by", "reason", "dry_run") and v is not None}, secret
        )
        identity = None if self._guard is None else self._guard.identify(headers)
        names = sorted(name.uri() for name in scope.get(PEER_NAMES, NOBODY))
        who = {
            "by": by,
            "role": None if identity is None else identity.role.value,
            "token": None if identity is None else identity.digest,
            "certificate": names or None,
        }
        what = {
            "act": redacted(_act_words(scope["method"], pattern, params, shown), secret),
            "route": f"{scope['method']} {pattern}",
            "path": redacted(shown_path(scope["raw_path"]), secret),
            "request": bounded(shown) if document is not None else None,
        }
        error = None if outcome.error is None else redacted(outcome.error[:ERROR_CHARS_MAX], secret)
        address = shown_address(scope.get("client")) or None
        return self._document(who, address, _via(headers), what, outcome._replace(error=error), reason)

    def _document(
        self,
        who: dict[str, Any],
        address: str | None,
        via: str,
        what: dict[str, Any],
        outcome: Outcome,
        reason: str | None = None,
    ) -> dict[str, Any]:
        at_ms = self._time.wall_ms()
        return {
            "at": utc_text(at_ms),
            "at_ms": at_ms,
            "node": self._node,
            "who": who,
            "from": address,
            "via": via,
            "what": what,
            "before": None,
            "after": None,
            "reason": reason,
            **outcome._asdict(),
        }


def redacted(value: Any, secret: str = "", depth: int = 0) -> Any:
    """`value` without secrets: values whose name tells that they are one, user and password in URLs, and `secret`
    itself wherever it is. Values nested deeper than DEPTH_MAX are left out."""
    if depth > DEPTH_MAX:
        return None
    match value:
        case dict():
            return {
                str(redacted(name, secret)): REDACTED
                if _is_secret(str(name), each)
                else redacted(each, secret, depth + 1)
                for name, each in value.items()
            }
        case list() | tuple():
            return [redacted(each, secret, depth + 1) for each in value]
        case str():
            return _USERINFO.sub(REDACTED, value.replace(secret, REDACTED) if secret else value)
        case _:
            return value


def bounded(value: Any) -> Any:
    """`value` as it comes back from JSON, or its beginning when its JSON is longer than VALUE_BYTES_MAX. Values that
    JSON cannot express become text; such keys are left out."""
    text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
    size = len(text.encode(errors="backslashreplace"))
    return json.loads(text) if size <= VALUE_BYTES_MAX else {"start": text[: VALUE_BYTES_MAX // 4], "bytes": size}


def _is_secret(name: str, value: object) -> bool:
    return value is not None and _SECRET.search(name) is not None and not name.endswith("_file")


def _secret_of(headers: Headers) -> str:
    """The token of a request as text, "" without one."""
    token = token_of(headers)
    return "" if token is None or len(token) < SECRET_CHARS_MIN else token.decode("latin-1")


def _words(value: Any) -> str | None:
    return value[:WORDS_MAX] if isinstance(value, str) and value else None


def _via(headers: Headers) -> str:
    """The way of a request: what it calls itself, else "dashboard" for a browser's and "http" for others."""
    for name, value in headers:
        if name == VIA and value in WAYS:
            return WAYS[value]
    return "dashboard" if any(name in OF_BROWSERS for name, _ in headers) else "http"


def _act_words(method: str, pattern: str, params: Mapping[str, bytes], body: Mapping[str, Any]) -> str:
    """An act in words: "set option replication.min.isr: value=2"."""
    names = {name: value.decode(errors="backslashreplace") for name, value in params.items()}
    words = ACTS.get((method, pattern), f"{method} {pattern}").format_map(names)
    given = {name: value for name, value in body.items() if value is not False and value not in ("", [], {})}
    details = ", ".join(f"{name}={_detail(value)}" for name, value in given.items())
    text = f"{words}: {details}" if details else words
    return text if len(text) <= ACT_CHARS_MAX else text[: ACT_CHARS_MAX - 3] + "..."


def _detail(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= DETAIL_CHARS_MAX else text[: DETAIL_CHARS_MAX - 3] + "..."


def _outcome_of(error: BaseException) -> Outcome:
    """The outcome of an act that raised `error`."""
    if isinstance(error, UnreadBody):
        error = error.error
    if not isinstance(error, IsthmusError):
        return Outcome("unknown", 500, "internal error, see the node's log")
    status = status_of(error)
    unknown = isinstance(error, OutcomeUnknown) or status == 500
    return Outcome("unknown" if unknown else "refused", status, f"{error.reason}: {explanation(error)}")
