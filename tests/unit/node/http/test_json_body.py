"""JSON bodies as structs: accepted bodies, refusals and their messages, and the schema in /openapi.json."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import msgspec
import pytest

from isthmus.node.admin_api.application import AdminApi
from isthmus.node.http.json_body import BodyHandler, parse_body
from isthmus.node.http.openapi import describe
from isthmus.node.http.responses import RequestRefused
from isthmus.node.nouns.requests import AuditedRequest, DryRun, Name, right
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY


class SampleRequest(AuditedRequest, frozen=True, kw_only=True):
    """A body with a field of each kind."""

    name: Name
    count: Annotated[int, msgspec.Meta(ge=1, le=5)] | None = None
    mode: Literal["replay", "discard"] | None = None
    offsets: Annotated[dict[Annotated[str, msgspec.Meta(pattern="^[0-9]+$")], int], right("offsets")] | None = None
    ids: Annotated[list[Name], msgspec.Meta(max_length=2)] | None = None
    start: Literal["now", "0"] | int | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="from")
    dry_run: DryRun = False


def test_a_body_of_known_keys_and_types_is_a_struct() -> None:
    """Omitted keys have their defaults; a key may have another name than its field; a null body is an empty one."""
    found = parse_body({"name": "q", "from": 7, "count": None, "by": "ann"}, SampleRequest)
    assert found == SampleRequest(name="q", start=7, by="ann")
    with pytest.raises(RequestRefused, match="name is needed: a text that is not empty"):
        parse_body(None, SampleRequest)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "the body must be a JSON object"),
        ({"name": "\ud800"}, "a text in it is not Unicode"),
        ({"name": "q", "b": 1, "a": 2}, "'a', 'b' in the body are unknown: by, count, dry_run, from, ids"),
        ({"name": ""}, "name must be a text that is not empty"),
        ({"name": "q", "count": 6}, "count must be a whole number from 1 to 5, or null"),
        ({"name": "q", "count": True}, "count must be a whole number from 1 to 5, or null"),
        ({"name": "q", "count": 1.0}, "count must be a whole number from 1 to 5, or null"),
        ({"name": "q", "count": 10**30}, "count must be a whole number from 1 to 5, or null"),
        ({"name": "q", "mode": "drop"}, 'mode must be "discard" or "replay", or null'),
        ({"name": "q", "offsets": {"x": 1}}, "offsets must be offsets, or null"),
        ({"name": "q", "offsets": {"1": "x"}}, "offsets must be offsets, or null"),
        ({"name": "q", "ids": ["a", ""]}, "ids must be a list of at most 2, each a text that is not empty, or null"),
        ({"name": "q", "from": None}, 'from must be "0" or "now", or a whole number'),
        ({"name": "q", "dry_run": None}, "dry_run must be true or false"),
        (
            {"name": "q", "reason": "x" * 1001},
            "reason must be a text of at most 1000 characters, or null; it has 1001 characters",
        ),
    ],
)
def test_a_wrong_body_is_refused_with_what_would_be_right(body: Any, words: str) -> None:
    """400 `bad-json`, and a sentence that names the key and the values that are right."""
    with pytest.raises(RequestRefused) as refused:
        parse_body(body, SampleRequest)
    assert (refused.value.status, refused.value.reason) == (400, "bad-json")
    assert words in str(refused.value)


def test_every_typed_body_of_the_admin_api_is_in_its_description() -> None:
    """Each POST of the admin API has a body with a schema, whose properties are exactly the accepted keys."""
    api = AdminApi(SimpleNamespace(), FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]
    document = json.loads(json.dumps(describe(api, "t", "1", objects=False)))
    posts = 0
    for pattern, method, handler in api.router.routes():
        if method != "POST":
            continue
        posts += 1
        assert isinstance(handler, BodyHandler), pattern
        body = document["paths"][pattern]["post"]["requestBody"]
        name = body["content"]["application/json"]["schema"]["$ref"].removeprefix("#/components/schemas/")
        schema = document["components"]["schemas"][name]
        assert set(schema["properties"]) == set(handler.model.__struct_encode_fields__), pattern
        assert schema["additionalProperties"] is False
        assert body["required"] == bool(schema.get("required"))
    assert posts > 40


async def test_the_handler_gets_the_struct() -> None:
    """A routed handler is called with the request and its parsed body; its docstring is the operation's summary."""

    async def handle(_request: Any, body: SampleRequest) -> Any:
        """Do it."""
        return body.name

    class Sent:
        async def json(self) -> Any:
            return {"name": "q"}

    handler = BodyHandler(SampleRequest, handle)
    request: Any = Sent()
    assert await handler(request) == "q"
    assert handler.__doc__ == "Do it."
