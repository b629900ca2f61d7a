"""The OpenAPI 3.1 description of an HTTP API, generated from its router: GET /openapi.json.

A path is in it because it is routed; the first sentence of its handler's docstring is its summary, and the struct of
its `BodyHandler` its body. Parameters and statuses are in the tables here. `ClientApi` routes object paths itself; they
are in OBJECTS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from isthmus.node.http.application import HttpApplication, Request, RoutedHandler, json_reply
from isthmus.node.http.json_body import BodyHandler
from isthmus.node.http.object_query import FLAGS, QUORUM_WORDS, QUORUMS, SYNC_WORDS
from isthmus.node.http.responses import Reply
from isthmus.repl.model.requests import Isolation

OPENAPI_VERSION: Final = "3.1.0"
PATH: Final = "/openapi.json"
SCHEMA_REF: Final = "#/components/schemas/{name}"

NUMBER: Final = {"type": "string", "pattern": "^[0-9]{1,9}$"}
FLAG: Final = {"enum": ["true", "false", "default"]}
QUORUM: Final = {"anyOf": [NUMBER, {"enum": sorted(QUORUM_WORDS)}]}
TAGS: Final = {"type": "string", "pattern": '^(\\*|"[!#-~]+"(, "[!#-~]+")*)$'}
DATE: Final = {"type": "string", "pattern": "^(Mon|Tue), 0[1-9] Jan 20[0-9]{2} [01][0-9]:[0-5][0-9]:[0-5][0-9] GMT$"}

WORDS: Final[Mapping[int, str]] = {
    200: "what was asked for",
    201: "written under the key in `Location`",
    204: "done",
    300: "siblings: their vtags, or all of them as multipart/mixed",
    304: "the client has this version already",
    400: "the request is wrong, see `X-Isthmus-Reason`",
    401: "a token is needed",
    403: "the token's role does not do",
    404: "not found, or deleted (`X-Riak-Deleted`)",
    409: "what was named has changed, or is another's",
    412: "a condition does not hold; nothing was written",
    413: "larger than a limit, which the text names",
    415: "no media type",
    422: "more siblings than the limit",
    431: "request line and headers are over the limit",
    500: "a fault of this node",
    502: "a node of another cluster is at fault",
    503: "not now; nothing was written; try again after `Retry-After`",
    504: "the outcome is unknown",
}
"""Descriptions of statuses; docs/http.md has the reasons."""

ANYWHERE: Final = (400, 401, 403, 431, 500, 503)
"""Statuses that any request may be answered with."""


class OperationSpec(NamedTuple):
    """Description of one method of one path, beyond the data of the router.

    `query`, `headers`: name -> JSON schema; `body`: media type, or None for none; `statuses` besides ANYWHERE;
    `answer`: media type of 200, None for none.
    """

    statuses: Sequence[int] = (200,)
    query: Mapping[str, Any] = {}
    headers: Mapping[str, Any] = {}
    body: str | None = None
    answer: str | None = "application/json"
    required: Sequence[str] = ()


_LISTED: Final = {"enum": ["true", "stream"]}
_PAGES: Final = {
    "prefix": {"type": "string"},
    "limit": {"type": "string", "pattern": "^([1-9][0-9]{0,3}|10000)$"},
    "continuation": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
}
_LISTING: Final = {"encoding": {"enum": ["percent", "auto"]}, "timeout": NUMBER}
_ANY: Final = "*/*"
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

_READ: Final = OperationSpec(
    (200, 300, 304, 404, 412),
    {**_OBJECT_QUERY, "vtag": {"type": "string"}},
    {**_CONDITIONS, "If-Modified-Since": DATE},
    answer=_ANY,
)
_WRITE: Final = OperationSpec(
    (200, 204, 300, *_WRITES, 415, 422), _OBJECT_QUERY, {**_CONDITIONS, **_CLOCKS, **_NAMED}, _ANY, _ANY
)
_CREATE: Final = OperationSpec((201, *_WRITES, 415, 422), _OBJECT_QUERY, {**_CONDITIONS, **_CLOCKS}, _ANY, None)
_DELETE: Final = OperationSpec((204, *_WRITES), _OBJECT_QUERY, {**_CONDITIONS, **_CLOCKS, **_NAMED}, answer=None)
_KEYS: Final = OperationSpec((200, 404), {"keys": _LISTED, **_LISTING, **_PAGES}, required=("keys",))
_BUCKETS: Final = OperationSpec((200, 404), {"buckets": _LISTED, **_LISTING, **_PAGES}, required=("buckets",))
_OLD_BUCKETS: Final = OperationSpec((200, 404), {"buckets": _LISTED, **_LISTING}, required=("buckets",))
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
        (200, 404), {"keys": {"enum": ["true", "stream", "false"]}, "props": {"enum": ["true", "false"]}, **_LISTING}
    ),
    ("POST", "/batch/put"): OperationSpec((200, 413), body=_PACKED, answer=_PACKED),
    ("POST", "/batch/get"): OperationSpec((200, 413), body=_PACKED, answer=_PACKED),
    ("GET", "/cluster/routes"): OperationSpec((200, 304), headers={"If-None-Match": TAGS}),
    ("POST", "/queues/{queue}/fetch"): OperationSpec((200, 404, 409, 413), body=_PACKED, answer=_PACKED),
    ("GET", "/queues/{queue}/link"): OperationSpec((200, 404)),
    ("POST", "/queues/{queue}/object"): OperationSpec((200, 404, 409, 413), body=_PACKED, answer=_PACKED),
    ("GET", "/queuename/{queue}"): OperationSpec(
        (200, 404, 409), {"object_format": {"enum": ["internal"]}}, answer="application/octet-stream"
    ),
    ("POST", "/queuename/{queue}"): OperationSpec((200, 404, 413), body="application/json", answer=_TEXT),
    ("GET", "/"): OperationSpec((200,), answer=_ANY),
    ("GET", "/ping"): OperationSpec((200,), answer=_TEXT),
    ("GET", "/livez"): OperationSpec((200,), answer=_TEXT),
    ("GET", "/readyz"): OperationSpec((200,), answer=_TEXT),
    ("GET", "/metrics"): OperationSpec((200,), answer=_TEXT),
}
"""(method, pattern) -> the specification of an operation."""

ADMIN_OPERATIONS: Final[Mapping[tuple[str, str], OperationSpec]] = {
    ("GET", "/admin/history"): OperationSpec(
        (200, 404),
        {
            "range": {"enum": ["hour", "day"]},
            "series": {"type": "string"},
            "node": {"type": "string"},
            "bucket_type": {"type": "string"},
        },
        required=("series",),
    ),
    ("GET", "/admin/live"): OperationSpec((200, 404), {"bucket_type": {"type": "string"}}, answer="text/event-stream"),
}
"""As OPERATIONS, of the admin API."""

_ASKED: Final = OperationSpec((200, 404, 502))
_PUSHED: Final = OperationSpec((200, 404, 409, 413, 502, 504), body="application/json")
_SET: Final = OperationSpec((200, 204, 404, 409, 413, 504), body="application/json")
_RESET: Final = OperationSpec((200, 204, 404, 409, 504))


def operation_of(method: str, pattern: str) -> OperationSpec:
    """The specification of a route; without an entry the usual one of its method: JSON in and out."""
    usual = {"GET": _ASKED, "PUT": _SET, "DELETE": _RESET}.get(method, _PUSHED)
    key = (method, pattern)
    return OPERATIONS.get(key) or ADMIN_OPERATIONS.get(key, usual)


def describe(api: HttpApplication, title: str, version: str, *, objects: bool) -> dict[str, Any]:
    """The OpenAPI document of `api` as it is routed now; `objects`: with the object paths."""
    paths: dict[str, dict[str, Any]] = {}
    models: dict[str, type[msgspec.Struct]] = {}
    for pattern, method, handler in api.router.routes():
        described = _described(method, pattern, _words_of(handler))
        if isinstance(handler, BodyHandler):
            models[handler.model.__name__] = handler.model
            described["requestBody"] = _typed_body(handler.model)
        paths.setdefault(pattern, {})[method.lower()] = described
    if objects:
        for pattern in OBJECT_PATHS:
            for method, words in OBJECTS.items():
                paths.setdefault(pattern, {})[method.lower()] = _described(method, pattern, words)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": title, "version": version, "description": "Statuses and reasons: docs/http.md."},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": _schemas(models)},
    }


def _described(method: str, pattern: str, words: str) -> dict[str, Any]:
    known = operation_of(method, pattern)
    parameters = [
        *({"name": n, "in": "path", "required": True, "schema": _NAME} for n in re.findall(r"\{(\w+)\}", pattern)),
        *(
            {"name": name, "in": "query", "required": name in known.required, "schema": {"type": "string", **schema}}
            for name, schema in known.query.items()
        ),
        *({"name": n, "in": "header", "required": False, "schema": s} for n, s in known.headers.items()),
    ]
    described: dict[str, Any] = {
        "summary": words,
        "operationId": re.sub(r"\W+", "_", f"{method.lower()} {pattern}").strip("_"),
        "responses": {str(status): _answer(status, known) for status in sorted({*known.statuses, *ANYWHERE})},
    }
    if parameters:
        described["parameters"] = parameters
    if known.body is not None:
        described["requestBody"] = {"required": True, "content": {known.body: {}}}
    return described


def _typed_body(model: type[msgspec.Struct]) -> dict[str, Any]:
    """A request body with the schema of its struct. No body counts as an empty object."""
    required = any(field.required for field in msgspec.structs.fields(model))
    return {
        "required": required,
        "content": {"application/json": {"schema": {"$ref": SCHEMA_REF.format(name=model.__name__)}}},
    }


def _schemas(models: Mapping[str, type[msgspec.Struct]]) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components([models[name] for name in sorted(models)], ref_template=SCHEMA_REF)
    return schemas


_NAME: Final = {"type": "string", "minLength": 1}


def _answer(status: int, known: OperationSpec) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": WORDS[status]}
    if status == 200 and known.answer is not None:
        answer["content"] = {known.answer: {}}
    return answer


def _words_of(handler: RoutedHandler) -> str:
    """The first sentence of a handler's docstring."""
    text = " ".join((handler.__doc__ or "").split())
    return re.split(r"(?<=[.;])\s", text, maxsplit=1)[0].rstrip(";")


def add_openapi(api: HttpApplication, title: str, version: str, *, objects: bool = False) -> None:
    """Serve the document at PATH. It is generated for each request, so that it has the routes that were added later."""

    async def openapi(_: Request) -> Reply:
        """This description, OpenAPI 3.1."""
        return json_reply(describe(api, title, version, objects=objects))

    api.router.add("GET", PATH, openapi)
