"""The requests that an HTTP API answers, beyond what its router knows: parameters, bodies, answers and statuses.

`openapi` describes them, and `HttpApplication` refuses parameters that are not in these tables, so that a misspelled
one is not ignored. Requests of other clusters, of probes and of browsers may have any: a newer version may send more,
and what a load balancer or a link adds must not fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from isthmus.node.http.object_query import FLAGS, QUORUM_WORDS, QUORUMS, SYNC_WORDS
from isthmus.node.http.schemas import list_of, ref
from isthmus.node.nouns.nouns import NOUNS
from isthmus.repl.model.requests import Isolation

NUMBER: Final = {"type": "string", "pattern": "^[0-9]{1,9}$"}
FLAG: Final = {"enum": ["true", "false", "default"]}
QUORUM: Final = {"anyOf": [NUMBER, {"enum": sorted(QUORUM_WORDS)}]}
TAGS: Final = {"type": "string", "pattern": '^(\\*|"[!#-~]+"(, "[!#-~]+")*)$'}
DATE: Final = {"type": "string", "pattern": "^(Mon|Tue), 0[1-9] Jan 20[0-9]{2} [01][0-9]:[0-5][0-9]:[0-5][0-9] GMT$"}


class OperationSpec(NamedTuple):
    """Description of one method of one path, beyond the data of the router.

    `query`, `headers`: name -> JSON schema; `body`: media type, or None for none; `statuses` besides ANYWHERE;
    `answer`: media type of 200, None for none. `bodies` and `answers` (by status) are further media types, or the
    same, with their schemas.
    """

    statuses: Sequence[int] = (200,)
    query: Mapping[str, Any] = {}
    headers: Mapping[str, Any] = {}
    body: str | None = None
    answer: str | None = "application/json"
    required: Sequence[str] = ()
    bodies: Mapping[str, Any] = {}
    answers: Mapping[int, Mapping[str, Any]] = {}
    any_query: bool = False
    """Whether unknown query parameters are ignored."""


_LISTED: Final = {"enum": ["true", "stream"]}
_PAGES: Final = {
    "prefix": {"type": "string"},
    "limit": {"type": "string", "pattern": "^([1-9][0-9]{0,3}|10000)$"},
    "continuation": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
}
_LISTING: Final = {"encoding": {"enum": ["percent", "auto"]}, "timeout": NUMBER}
_TEXT_VALUE: Final = {"type": "string"}
_OF_TYPE: Final = {"bucket_type": _TEXT_VALUE}
_OF_NODE: Final = {"node": _TEXT_VALUE}
_WANTED: Final = {"type": "string", "maxLength": 200}
_COUNT: Final = {"count": NUMBER}
_ROWS: Final = NUMBER
_TIME: Final = {"type": "string", "pattern": "^[0-9]{1,15}$", "description": "Milliseconds since 1970."}
_ANY: Final = "*/*"
_JSON: Final = "application/json"
_TEXT: Final = "text/plain"
_PACKED: Final = "application/msgpack"

_OBJECT_QUERY: Final[Mapping[str, Any]] = {
    **dict.fromkeys(sorted(QUORUMS), QUORUM),
    **dict.fromkeys(sorted(FLAGS), FLAG),
    "n_val": {"type": "string", "pattern": "^[1-9][0-9]{0,8}$"},
    "sync_on_write": {"enum": sorted(SYNC_WORDS)},
    "timeout": NUMBER,
    "isolation": {"enum": [each.value for each in Isolation]},
}
_CONDITIONS: Final = {"If-Match": TAGS, "If-None-Match": TAGS, "If-Unmodified-Since": DATE}
_CLOCKS: Final = {"X-Riak-Vclock": {"type": "string", "contentEncoding": "base64"}}
_NAMED: Final = {"X-Isthmus-Request-Id": {"type": "string", "pattern": "^[!-~]{1,64}$"}}
_WRITES: Final = (404, 409, 412, 413, 504)

_SIBLINGS: Final = {300: {_TEXT: {}, "multipart/mixed": {}, _JSON: ref("Siblings")}}

_READ: Final = OperationSpec(
    (200, 300, 304, 404, 412),
    {**_OBJECT_QUERY, "vtag": {"type": "string"}},
    {**_CONDITIONS, "If-Modified-Since": DATE},
    answer=_ANY,
    answers=_SIBLINGS,
)
_WRITE: Final = OperationSpec(
    (200, 204, 300, *_WRITES, 415, 422),
    _OBJECT_QUERY,
    {**_CONDITIONS, **_CLOCKS, **_NAMED},
    _ANY,
    _ANY,
    answers=_SIBLINGS,
)
_CREATE: Final = OperationSpec((201, *_WRITES, 415, 422), _OBJECT_QUERY, {**_CONDITIONS, **_CLOCKS}, _ANY, None)
_DELETE: Final = OperationSpec((204, *_WRITES), _OBJECT_QUERY, {**_CONDITIONS, **_CLOCKS, **_NAMED}, answer=None)
_PROPS: Final = {"props": {"enum": ["true", "false"]}}
"""Without effect on listings of keys; a client of Riak sends it."""
_KEYS: Final = OperationSpec(
    (200, 404),
    {"keys": _LISTED, **_LISTING, **_PAGES, **_PROPS},
    required=("keys",),
    answers={200: {_JSON: ref("Keys")}},
)
_BUCKETS: Final = OperationSpec(
    (200, 404),
    {"buckets": _LISTED, **_LISTING, **_PAGES},
    required=("buckets",),
    answers={200: {_JSON: ref("Buckets")}},
)
_OLD_BUCKETS: Final = _BUCKETS._replace(query={"buckets": _LISTED, **_LISTING})
_PREFLIST: Final = OperationSpec((200, 404))

OBJECTS: Final[Mapping[str, str]] = {
    "GET": "The value of a key, or its siblings.",
    "PUT": "Write a value.",
    "POST": "Write a value, as PUT.",
    "DELETE": "Delete a key.",
}
"""Method -> its summary for one object; a GET also answers HEAD."""
OBJECT_PATHS: Final = (
    "/buckets/{bucket}/keys/{key}",
    "/types/{type}/buckets/{bucket}/keys/{key}",
    "/riak/{bucket}/{key}",
)

_BY_OBJECT: Final = {"GET": _READ, "PUT": _WRITE, "POST": _WRITE, "DELETE": _DELETE}

_OF_CLUSTERS: Final = OperationSpec((200, 404, 409, 413, 502, 504), body=_PACKED, answer=_PACKED, any_query=True)
_FILTER: Final = {"filter": {"type": "string", "contentEncoding": "base64"}}
_RIAK_FOLD: Final = OperationSpec((200, 404, 405, 413, 504), {**_FILTER, "timeout": NUMBER})
_PROBE: Final = OperationSpec((200,), answer=_TEXT, any_query=True)

OPERATIONS: Final[Mapping[tuple[str, str], OperationSpec]] = {
    **{(method, path): _BY_OBJECT[method] for method in OBJECTS for path in OBJECT_PATHS},
    **{
        (method, prefix + path): operation
        for prefix in ("", "/types/{type}")
        for method, path, operation in (
            ("GET", "/buckets", _BUCKETS),
            ("GET", "/buckets/{bucket}/keys", _KEYS),
            ("POST", "/buckets/{bucket}/keys", _CREATE),
            ("GET", "/buckets/{bucket}/keys/{key}/preflist", _PREFLIST),
        )
    },
    ("GET", "/riak"): _OLD_BUCKETS,
    ("POST", "/riak/{bucket}"): _CREATE,
    ("GET", "/riak/{bucket}"): OperationSpec(
        (200, 404), {"keys": {"enum": ["true", "stream", "false"]}, **_PROPS, **_LISTING}
    ),
    ("POST", "/batch/put"): OperationSpec(
        (200, 413, 504),
        body=_PACKED,
        bodies={_JSON: list_of(ref("PutItem"))},
        answer=_PACKED,
        answers={200: {_JSON: list_of(ref("PutAnswer"))}},
    ),
    ("POST", "/batch/get"): OperationSpec(
        (200, 413),
        body=_PACKED,
        bodies={_JSON: list_of(ref("GetItem"))},
        answer=_PACKED,
        answers={200: {_JSON: list_of(ref("GetAnswer"))}},
    ),
    ("GET", "/cluster/routes"): OperationSpec((200, 304), headers={"If-None-Match": TAGS}),
    ("POST", "/queues/{queue}/fetch"): _OF_CLUSTERS,
    ("GET", "/queues/{queue}/link"): OperationSpec((200, 404), any_query=True),
    ("POST", "/queues/{queue}/object"): _OF_CLUSTERS,
    ("POST", "/queues/{queue}/counters"): _OF_CLUSTERS,
    ("GET", "/queuename/{queue}"): OperationSpec(
        (200, 404, 409),
        {"object_format": {"enum": ["internal", "internal_aaehash"]}},
        answer="application/octet-stream",
    ),
    ("POST", "/queuename/{queue}"): OperationSpec((200, 404, 413), body="application/json", answer=_TEXT),
    ("GET", "/aaebucketlist"): OperationSpec((200, 405, 413), {"nval": NUMBER, "filter": NUMBER, "timeout": NUMBER}),
    **{
        ("GET", f"/{fold}{prefix}/buckets/{{bucket}}{rest}"): _RIAK_FOLD
        for prefix in ("", "/types/{type}")
        for fold, rest in (
            ("objectstats", ""),
            ("objectsizes", "/sizes/{size}"),
            ("siblings", "/counts/{count}"),
            ("tombs", ""),
            ("reap", ""),
            ("erase", ""),
            ("rangerepl", "/queuename/{queue}"),
            ("rangerepair", ""),
            ("rangetrees", "/trees/{size}"),
            ("rangetrees", "/keysclocks"),
        )
    },
    ("GET", "/cachedtrees/nvals/{n_val}/root"): OperationSpec((200, 404)),
    ("GET", "/cachedtrees/nvals/{n_val}/branch"): OperationSpec((200, 404), _FILTER),
    ("GET", "/cachedtrees/nvals/{n_val}/keysclocks"): _RIAK_FOLD,
    ("GET", "/"): OperationSpec((200,), answer=_ANY, any_query=True),
    **{("GET", path): _PROBE for path in ("/ping", "/livez", "/readyz", "/metrics")},
}
"""(method, pattern) -> the specification of an operation."""

_ASKED: Final = OperationSpec((200, 404, 502))
_PUSHED: Final = OperationSpec((200, 404, 409, 413, 502, 504), body="application/json")
_SET: Final = OperationSpec((200, 204, 404, 409, 413, 504), body="application/json")
_RESET: Final = OperationSpec((200, 204, 404, 409, 504))

_ANY_QUERY: Final = ("/trees/", "/rows", "/batch/push", "/cluster/nodes", "/membership_request", "/dashboard/")
"""Beginnings of paths whose requests may have any query, beside those above."""

ADMIN_OPERATIONS: Final[Mapping[tuple[str, str], OperationSpec]] = {
    ("GET", "/admin/history"): OperationSpec(
        (200, 404),
        {"range": {"enum": ["hour", "day"]}, "series": _TEXT_VALUE, **_OF_NODE, **_OF_TYPE},
        required=("series",),
    ),
    ("GET", "/admin/live"): OperationSpec((200, 404), _OF_TYPE, answer="text/event-stream"),
    ("GET", "/admin/audit"): _ASKED._replace(
        query={
            "since": _TIME,
            "until": _TIME,
            "limit": _ROWS,
            "before": {"type": "string", "pattern": "^[^:,]+:[0-9]{1,15}(,[^:,]+:[0-9]{1,15})*$"},
            **_OF_NODE,
            "act": _WANTED,
            "who": _WANTED,
            "object": _WANTED,
            "outcome": {"enum": ["done", "refused", "unknown"]},
        }
    ),
    ("GET", "/admin/events"): _ASKED._replace(
        query={"since": _TIME, "last": _TIME, "limit": _ROWS, "kind": _TEXT_VALUE, **_OF_NODE}
    ),
    ("GET", "/admin/gaps"): _ASKED._replace(query={"queue": _TEXT_VALUE}),
    ("GET", "/admin/queues/{queue}/peek"): _ASKED._replace(query=_COUNT),
    ("GET", "/admin/queues/{queue}/filter"): _ASKED._replace(
        query={"type": _TEXT_VALUE, "bucket": _TEXT_VALUE, "encoding": {"enum": ["percent"]}}, required=("bucket",)
    ),
    ("GET", "/admin/explain"): _ASKED._replace(
        query={"type": _TEXT_VALUE, "bucket": _TEXT_VALUE, "key": _TEXT_VALUE}, required=("bucket", "key")
    ),
    ("GET", "/admin/reconcile/runs/{kind}/{run}"): _ASKED._replace(query=_OF_NODE),
}
"""As OPERATIONS, of the admin API; `_of_nouns` has those of described nouns."""


def _of_nouns() -> Iterator[tuple[tuple[str, str], OperationSpec]]:
    """(method, path) -> the specification of each route of a noun, with the form of its answer."""
    for noun in NOUNS:
        for method, path, answers, status in noun.answers():
            forms = [ref(answer.__name__) for answer in answers]
            usual = _ASKED if method == "GET" else _PUSHED
            parameters = noun.parameters_of(method, path)
            query = {
                name: {**(NUMBER if each.number else _TEXT_VALUE), "description": each.meaning}
                for name, each in parameters.items()
            }
            yield (
                (method, path),
                usual._replace(
                    statuses=(status, *usual.statuses[1:]),
                    query=query,
                    answers={status: {_JSON: {"oneOf": forms} if forms[1:] else forms[0]}},
                ),
            )


_NOUN_OPERATIONS: Final = dict(_of_nouns())


def operation_of(method: str, pattern: str) -> OperationSpec:
    """The specification of a route; without an entry the usual one of its method: JSON in and out."""
    usual = {"GET": _ASKED, "PUT": _SET, "DELETE": _RESET}.get(method, _PUSHED)
    key = (method, pattern)
    return OPERATIONS.get(key) or ADMIN_OPERATIONS.get(key) or _NOUN_OPERATIONS.get(key, usual)


@cache
def parameters_of(method: str, pattern: str) -> frozenset[str] | None:
    """The query parameters that a request of a route may have; None: any."""
    known = operation_of("GET" if method == "HEAD" else method, pattern)
    return None if known.any_query or pattern.startswith(_ANY_QUERY) else frozenset(known.query)
