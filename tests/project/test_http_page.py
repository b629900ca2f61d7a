"""The pages of HTTP: requests of operators are routes, and those of other clusters have a page of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

from isthmus.node.admin_api.application import AdminApi
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY

DOCS: Final = Path(__file__).parents[2] / "docs"
ADMIN: Final = "/admin/"


def documented(document: str) -> Iterator[tuple[str, str]]:
    """(method, pattern) of every request in the first cells of the page's tables, names replaced by `*`.

    A cell is like "`GET /admin/lag`, `/admin/ledger`" or "`POST /admin/sink/suspend`, `.../resume`": a method is that
    of the paths behind it, too, and `...` stands for the path before without its last segment."""
    for cell in re.findall(r"^\| (`(?:GET|POST|PUT|DELETE) [^|]*) \|", document, re.MULTILINE):
        method, path = "", ""
        for text in re.findall(r"`([^`]+)`", cell):
            first, _, rest = text.rpartition(" ")
            method = first or method
            path = rest.replace("...", path.rpartition("/")[0], 1)
            yield method, re.sub(r"(?<=/)[A-Z]+(?=/|$)", "*", path)


def page(name: str) -> str:
    """The text of a page."""
    return (DOCS / name).read_text()


def routed() -> set[tuple[str, str]]:
    """(method, pattern) of every route under /admin/, names replaced by `*`."""
    api = AdminApi(SimpleNamespace(), FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]
    routes = ((method, re.sub(r"\{\w+\}", "*", pattern)) for pattern, method, _ in api.router.routes())
    return {(method, pattern) for method, pattern in routes if pattern.startswith(ADMIN)}


def test_every_admin_route_has_a_row_and_every_row_a_route() -> None:
    """A request that operators may send is on their page, and the page names no other."""
    rows = {(method, path) for method, path in documented(page("http-admin.md")) if path.startswith(ADMIN)}
    assert rows == routed()


def test_no_other_page_has_requests_of_operators() -> None:
    """Their tables are on one page alone."""
    for name in ("http.md", "http-between.md"):
        assert [path for _, path in documented(page(name)) if path.startswith(ADMIN)] == []


def test_a_row_that_lacks_is_found() -> None:
    """All forms of a first cell are parsed; text in other cells is ignored."""
    text = "| `GET /admin/a/Q/peek`, `.../ledger`, `/admin/c` | answers as `GET /admin/d` |\n| `POST /admin/a` | x |"
    assert list(documented(text)) == [
        ("GET", "/admin/a/*/peek"), ("GET", "/admin/a/*/ledger"), ("GET", "/admin/c"), ("POST", "/admin/a"),
    ]  # fmt: skip


def test_what_other_clusters_ask_is_apart_from_what_applications_ask() -> None:
    """The page of applications has no request of sinks, full-sync and batch jobs; a page of its own has all of them."""
    internal = (
        "/queues/", "/queuename/", "/trees/", "/rows", "/batch/push", "/cluster/nodes", "/aaebucketlist",
        "/objectstats/", "/objectsizes/", "/siblings/", "/tombs/", "/reap/", "/erase/", "/rangerepl/", "/rangerepair/",
        "/cachedtrees/", "/rangetrees/", "/membership_request",
    )  # fmt: skip
    first = [path for _, path in documented(page("http.md"))]
    assert len(first) > 15
    assert [path for path in first if path.startswith(internal)] == []
    found = {path for _, path in documented(page("http-between.md"))}
    assert {part for part in internal if not any(path.startswith(part) for path in found)} == set()
    assert all(path.startswith(internal) for path in found)
