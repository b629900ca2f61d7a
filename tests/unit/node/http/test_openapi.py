"""/openapi.json against the router: every route is described, with statuses that docs/http.md lists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.admin_api.application import AdminApi
from isthmus.node.client_api.objects import METHODS
from isthmus.node.http import openapi
from isthmus.node.http.openapi import WORDS, describe
from isthmus.node.http.operations import ADMIN_OPERATIONS, OBJECT_PATHS, OPERATIONS, operation_of
from isthmus.node.http.schemas import DOCUMENTS
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY

DOCUMENT = Path(__file__).parents[4] / "docs" / "http.md"


@pytest.fixture
def described(client_api: Any) -> dict[str, Any]:
    answer = client_api.call("GET", "/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document: dict[str, Any] = json.loads(answer.body)
    return document


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(m.upper(), path): op for path, methods in document["paths"].items() for m, op in methods.items()}


def test_the_description_matches_the_routes(client_api: Any, described: dict[str, Any]) -> None:
    """Every method of every route is in the document, including objects, each with a summary of its own."""
    routed = {(method, pattern) for pattern, method, _ in client_api.app.router.routes()}
    objects = {(method, pattern) for pattern in OBJECT_PATHS for method in METHODS if method != "HEAD"}
    found = operations(described)
    assert found.keys() == routed | objects
    assert all(op["summary"] for op in found.values()), [key for key, op in found.items() if not op["summary"]]
    ids = [op["operationId"] for op in found.values()]
    assert len(ids) == len(set(ids))
    assert OPERATIONS.keys() <= found.keys()


def test_operations_of_the_admin_api_are_its_routes() -> None:
    """Every operation in ADMIN_OPERATIONS is a route of the admin API and is in its description."""
    api = AdminApi(SimpleNamespace(), FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]
    found = operations(describe(api, "operators", "1", objects=False))
    assert ADMIN_OPERATIONS.keys() <= found.keys()
    assert "text/event-stream" in found["GET", "/admin/live"]["responses"]["200"]["content"]


def test_requests_of_operators_are_described() -> None:
    """Each has a summary, which is the first sentence of a docstring; the rest is the description, with what fields of
    the answer mean."""
    api = AdminApi(SimpleNamespace(), FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]
    found = operations(describe(api, "operators", "1", objects=False))
    assert [key for key, operation in found.items() if not operation["summary"]] == []
    assert "outdated_why" in found["GET", "/admin/cluster"]["description"]
    assert found["GET", "/livez"]["summary"] == "The event loop runs."
    assert found["GET", "/livez"]["description"] == "A supervisor may restart a process that gives no answer."
    assert "description" not in found["GET", "/admin/queues/nodes"]


def test_object_paths_are_distinguished_from_routes(client_api: Any) -> None:
    """Each object path is answered by the object handlers for each of its methods: never 405, never an unknown path."""
    for pattern in OBJECT_PATHS:
        path = pattern.replace("{type}", "default").replace("{bucket}", "b").replace("{key}", "k")
        for method in METHODS:
            answer = client_api.call(method, path, b"v" if method in ("PUT", "POST") else b"", {"content-type": "a/b"})
            assert answer.status in operation_statuses(method, pattern), (method, path)
            assert answer.reason in (None, "not-found")


def operation_statuses(method: str, pattern: str) -> set[int]:
    return {*operation_of("GET" if method == "HEAD" else method, pattern).statuses, *openapi.ANYWHERE}


def test_every_status_is_one_that_the_documents_know(described: dict[str, Any]) -> None:
    """A refusal in the description has a reason in the table of docs/http.md, and each of its statuses is used."""
    known = {int(status) for status in re.findall(r"^\| (\d{3}) \|", DOCUMENT.read_text(), re.MULTILINE)}
    used = {int(status) for op in operations(described).values() for status in op["responses"]}
    assert {status for status in used if status >= 400} <= known
    assert used <= WORDS.keys()


def test_parameters_are_those_that_are_checked(client_api: Any, described: dict[str, Any]) -> None:
    """Every value that the description allows is accepted, and one outside is refused, by examples."""
    found = operations(described)["GET", "/buckets/{bucket}/keys/{key}"]
    client_api.put("/buckets/b/keys/k", b"v")
    for parameter in found["parameters"]:
        if parameter["in"] != "query" or parameter["name"] == "vtag":
            continue
        schema, name = parameter["schema"], parameter["name"]
        words = schema.get("enum") or next((s["enum"] for s in schema.get("anyOf", ()) if "enum" in s), ["1"])
        for word in words:
            assert client_api.call("GET", f"/buckets/b/keys/k?{name}={word}").status == 200, (name, word)
        assert client_api.call("GET", f"/buckets/b/keys/k?{name}=neither").status == 400, name


@pytest.mark.parametrize(("path", "name"), [("/batch/put", "PutItem"), ("/batch/get", "GetItem")])
def test_items_of_batches_have_the_members_of_their_schema(client_api: Any, path: str, name: str) -> None:
    """A batch takes exactly the members that its schema has: the refusal of another one lists them."""
    schema = DOCUMENTS[name]
    answer = client_api.call("POST", path, b'[{"neither": 1}]', {"content-type": "application/json"})
    assert answer.reason == "bad-json"
    listed = answer.body.decode().rpartition("members of an item: ")[2].strip().split(", ")
    assert sorted(listed) == sorted(schema["properties"])
    assert schema["additionalProperties"] is False
