"""Query parameters that a request does not have are refused by name; Riak's are accepted."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.admin_api.application import AdminApi
from isthmus.node.http.operations import ADMIN_OPERATIONS, OPERATIONS, operation_of, parameters_of
from isthmus.node.nouns.nouns import NOUNS
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY

KEY = "/buckets/b/keys/k"
ROOT = Path(__file__).parents[4]
ADMIN_API = ROOT / "node" / "admin_api"


@pytest.mark.parametrize(
    ("method", "path", "near"),
    [
        ("GET", KEY + "?retrunbody=true", "returnbody"),
        ("HEAD", KEY + "?vtga=x", ""),
        ("PUT", KEY + "?timeuot=5", "timeout"),
        ("POST", KEY + "?retunbody=true", "returnbody"),
        ("DELETE", KEY + "?rww=1", "rw"),
        ("GET", "/riak/b/k?isolaton=committed", "isolation"),
        ("POST", "/buckets/b/keys?retunbody=true", "returnbody"),
        ("GET", "/buckets/b/keys?keys=true&limt=2", "limit"),
        ("GET", "/buckets/b/keys?keys=true&max_results=2", "known here: continuation, encoding, keys, limit"),
        ("GET", "/buckets?buckets=true&prefx=a", "prefix"),
        ("GET", "/riak/b?keys=true&limit=2", "known here: encoding, keys, props, timeout"),
        ("POST", "/batch/put?w=1", "known here: none"),
        ("GET", "/openapi.json?x=1", "known here: none"),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_nearest_name(
    client_api: Any, method: str, path: str, near: str
) -> None:
    """On every path for programs, also beside known parameters; nothing is read or written."""
    answer = client_api.call(method, path, b"v" if method in ("PUT", "POST") else b"", {"content-type": "text/plain"})
    assert (answer.status, answer.reason) == (400, "bad-query"), answer.body
    if method != "HEAD":
        unknown = path.partition("?")[2].rpartition("&")[2].partition("=")[0]
        assert f': "{unknown}"; '.encode() in answer.body
        where = "a key" if "/k?" in path else f"{method} /"
        assert f"no such query parameter of {where}".encode() in answer.body
        assert near.encode() in answer.body
    assert client_api.kv.writes == 0


def test_a_parameter_that_is_there_twice_is_refused(client_api: Any) -> None:
    """Also with the same value; the answer names it."""
    for query in ("timeout=5&timeout=9", "r=1&w=1&r=1", "vtag=a&vtag=b"):
        answer = client_api.call("GET", f"{KEY}?{query}")
        assert (answer.status, answer.reason) == (400, "bad-query")
        assert f"{query.partition('=')[0]} is there more than once".encode() in answer.body


def test_what_riaks_clients_send_is_accepted(client_api: Any) -> None:
    """Quorums and flags of reads and writes, and the parameters with which its Python client lists keys."""
    client_api.put("/buckets/b/keys/k?w=quorum&dw=1&pw=0&returnbody=true&sloppy_quorum=true&asis=false", b"v")
    for path in (
        KEY + "?r=2&pr=0&basic_quorum=true&notfound_ok=false&node_confirms=1&deletedvclock=true&n_val=3",
        "/buckets/b/keys?keys=true&props=false",
        "/riak/b?props=false&keys=true",
    ):
        assert client_api.call("GET", path).status == 200, path


@pytest.mark.parametrize("path", ["/ping", "/livez", "/readyz", "/metrics", "/", "/cluster/nodes"])
def test_probes_and_requests_of_other_clusters_may_have_any(path: str) -> None:
    """A load balancer may add parameters, and a newer cluster may have more."""
    assert parameters_of("GET", path) is None
    assert parameters_of("HEAD", path) is None
    for other in ("/queues/{queue}/fetch", "/trees/leaves", "/rows", "/batch/push"):
        assert parameters_of("POST", other) is None


def read_by(module: ast.Module) -> set[str]:
    """The query parameters that a module's code reads."""
    read = set()
    for node in ast.walk(module):
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Tuple):
            names = [each.value for each in node.iter.elts if isinstance(each, ast.Constant)]
            read |= set(names) if f"query.get({ast.unparse(node.target)}" in ast.unparse(module) else set()
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        name, owner = node.args[0], ast.unparse(node.func.value)
        of_query = node.func.attr == "get" and owner in ("request.query", "query")
        of_number = node.func.attr == "number" and owner == "request"
        if (of_query or of_number) and isinstance(name, ast.Constant):
            read.add(name.value)
    return read


def test_the_parameters_that_the_admin_api_reads_are_known() -> None:
    """Each module of the admin API reads exactly the parameters that the table has for its routes: others would be
    refused, or without effect."""
    api = AdminApi(SimpleNamespace(), FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]
    known: dict[str, set[str]] = {}
    for pattern, method, handler in api.router.routes():
        module = getattr(handler, "__module__", "")
        if module.startswith("isthmus.node.admin_api."):
            known.setdefault(module.rpartition(".")[2], set()).update(operation_of(method, pattern).query)
    read = {path.stem: read_by(ast.parse(path.read_text())) for path in ADMIN_API.glob("*.py")}
    assert {name: found for name, found in read.items() if found} == {n: found for n, found in known.items() if found}
    assert len(set().union(*read.values())) >= 20
    assert not OPERATIONS.keys() & ADMIN_OPERATIONS.keys()


def sent_by(text: str) -> dict[str, set[str]]:
    """Path -> query parameters of the requests to the admin API in the text of a program, as far as they are plain."""
    found: dict[str, set[str]] = {}
    for path, query in re.findall(r"""["'`](/admin/[\w/-]+)\?([\w]+=[^"'`]*)""", text):
        found.setdefault(path, set()).update(re.findall(r"(?:^|&)(\w+)=", query))
    return found


def test_requests_of_our_programs_have_known_parameters_alone() -> None:
    """Each path with a query in the dashboard, the command line and the benchmarks. Commands' tests have a listener
    that refuses others, and the dashboard's have real nodes."""
    sent = [
        (path.name, target, names)
        for folder, ending in (("node/dashboard/static/pages", "js"), ("node/cli", "py"), ("bench", "py"))
        for path in (ROOT / folder).rglob(f"*.{ending}")
        for target, names in sent_by(path.read_text()).items()
    ]
    assert len(sent) >= 8
    unknown = {
        (name, target): names - parameters
        for name, target, names in sent
        if (parameters := parameters_of("GET", target)) is not None and not names <= parameters
    }
    assert unknown == {}


def test_a_search_of_the_dashboard_has_known_parameters_alone() -> None:
    """Pages build longer queries by `new URLSearchParams({...})` and `search.set(...)`."""
    known = {name for each in ADMIN_OPERATIONS.values() for name in each.query}
    for noun in NOUNS:
        known |= {name for each in (noun.parameters, *noun.view_parameters.values()) for name in each}
    sent = set()
    for path in (ROOT / "node/dashboard/static/pages").glob("*.js"):
        text = path.read_text()
        for names in re.findall(r"new URLSearchParams\(\{(.*?)\}\)", text, re.DOTALL):
            sent |= set(re.findall(r"(?:^|,)\s*(\w+)\b", names))
        sent |= set(re.findall(r'\bsearch\.set\("(\w+)"', text))
    assert len(sent) >= 8
    assert sent <= known
