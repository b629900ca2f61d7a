"""The OpenAPI 3.1 description of an HTTP API, generated from its router: GET /openapi.json.

A path is in it because it is routed; the first sentence of its handler's docstring is its summary, what follows is its
description, and the struct of its `BodyHandler` is its body. Parameters and statuses are in the tables of `operations`,
with the object paths, which `ClientApi` routes itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from isthmus.node.http.application import HttpApplication, Request, RoutedHandler, json_reply
from isthmus.node.http.json_body import BodyHandler
from isthmus.node.http.operations import OBJECT_PATHS, OBJECTS, OperationSpec, operation_of
from isthmus.node.http.responses import Reply
from isthmus.node.http.schemas import DOCUMENTS, REF, REFUSAL, REFUSALS, ref
from isthmus.node.nouns.nouns import NOUNS

OPENAPI_VERSION: Final = "3.1.0"
PATH: Final = "/openapi.json"
DESCRIPTION: Final = "A refusal has its code in the header `X-Isthmus-Reason`, and says what to do."

WORDS: Final[Mapping[int, str]] = {
    200: "what was asked for",
    202: "begun",
    201: "written under the key in `Location`; with `returnbody=true` the answer has the value",
    204: "done",
    300: "siblings: their vtags, or all of them as multipart/mixed or JSON",
    304: "the client has this version already",
    400: "the request is wrong, see `X-Isthmus-Reason`",
    401: "a token is needed",
    403: "the token's role does not do",
    404: "not found, or deleted (`X-Riak-Deleted`)",
    405: "the path answers other methods",
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

_ANSWERS: Final = {(each.method, each.path): each.forms for noun in NOUNS for each in noun.answers()}
"""(method, path) -> the structs of its answers, which `operations` refers to."""

ANYWHERE: Final = (400, 401, 403, 431, 500, 503)
"""Statuses that any request may be answered with."""


def describe(api: HttpApplication, title: str, version: str, *, objects: bool) -> dict[str, Any]:
    """The OpenAPI document of `api` as it is routed now; `objects`: with the object paths."""
    paths: dict[str, dict[str, Any]] = {}
    models: dict[str, type[msgspec.Struct]] = {}
    for pattern, method, handler in api.router.routes():
        described = _described(method, pattern, *_words_of(handler))
        models |= {answer.__name__: answer for answer in _ANSWERS.get((method, pattern), ())}
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
        "info": {"title": title, "version": version, "description": DESCRIPTION},
        "servers": [{"url": "/", "description": "The node that answers; each node of the cluster has the same."}],
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": {**_schemas(models), **(DOCUMENTS if objects else REFUSALS)}},
    }


def _described(method: str, pattern: str, words: str, more: str = "") -> dict[str, Any]:
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
        **({"description": more} if more else {}),
        "operationId": re.sub(r"\W+", "_", f"{method.lower()} {pattern}").strip("_"),
        "responses": {str(status): _answer(status, known) for status in sorted({*known.statuses, *ANYWHERE})},
    }
    if parameters:
        described["parameters"] = parameters
    if known.body is not None:
        content = {known.body: {}, **{media: {"schema": schema} for media, schema in known.bodies.items()}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _typed_body(model: type[msgspec.Struct]) -> dict[str, Any]:
    """A request body with the schema of its struct. No body counts as an empty object."""
    required = any(field.required for field in msgspec.structs.fields(model))
    return {
        "required": required,
        "content": {"application/json": {"schema": ref(model.__name__)}},
    }


def _schemas(models: Mapping[str, type[msgspec.Struct]]) -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components([models[name] for name in sorted(models)], ref_template=REF)
    return schemas


_NAME: Final = {"type": "string", "minLength": 1}


def _answer(status: int, known: OperationSpec) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": WORDS[status]}
    content: dict[str, Any] = {}
    if status == 200 and known.answer is not None:
        content[known.answer] = {}
    if status >= 400:
        content |= {"text/plain": {}, "application/json": {"schema": ref(REFUSAL)}}
    content |= {media: {"schema": schema} if schema else {} for media, schema in known.answers.get(status, {}).items()}
    if content:
        answer["content"] = content
    return answer


def _words_of(handler: RoutedHandler) -> tuple[str, str]:
    """The first sentence of a handler's docstring, and all that follows it."""
    first, *more = re.split(r"(?<=\.)\s", " ".join((handler.__doc__ or "").split()), maxsplit=1)
    return first, "".join(more)


def add_openapi(api: HttpApplication, title: str, version: str, *, objects: bool = False) -> None:
    """Serve the document at PATH. It is generated for each request, so that it has the routes that were added later."""

    async def openapi(_: Request) -> Reply:
        """This description, OpenAPI 3.1."""
        return json_reply(describe(api, title, version, objects=objects))

    api.router.add("GET", PATH, openapi)
