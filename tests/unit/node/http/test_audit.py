"""Lines of the audit log: who, from where, by which way, what, and how it ended; no secret in any."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.aae.folds.folds import Page
from isthmus.config.settings import TokenSettings
from isthmus.node.admin_api.application import AdminApi
from isthmus.node.client_api.application import ClientApi
from isthmus.node.client_api.properties import PropertyRoutes
from isthmus.node.client_api.row_streams import RowRoutes
from isthmus.node.client_api.trees import TreeRoutes
from isthmus.node.dashboard.routes import Dashboard
from isthmus.node.http import audit
from isthmus.node.http.application import PEER_NAMES, AccessControl, HttpApplication, Request, json_reply
from isthmus.node.http.audit import ACTS, NOT_ACTS, REDACTED, AuditTrail, bounded, redacted
from isthmus.node.http.authorization import Guard, TokenRole, only_reads
from isthmus.node.http.durations import RequestDurations
from isthmus.node.http.json_body import BodyHandler
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.nouns.requests import AuditedRequest, DryRun
from isthmus.repl.model.errors import NotReady, OutcomeUnknown
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.security.tls import NodeName
from tests.support.memory_client_api import ClientApiFixture, make_client_api
from tests.support.memory_journal import MemoryJournal
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY
from tests.support.tls_files import CertificateFolder

NOW_MS = 1_700_000_000_123


class SetRequest(AuditedRequest, frozen=True, kw_only=True):
    """The body of the act of these tests."""

    value: Any = None
    password: str | None = None
    urls: str | None = None
    dry_run: DryRun = False


class Recorded:
    """An application with one act, `POST /admin/things/{name}`, which `end` ends, and its lines."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.end: BaseException | None = None
        self.kept = MemoryJournal()
        trail = AuditTrail("n1", self.kept, SimpleNamespace(wall_ms=lambda: NOW_MS), guard)  # type: ignore[arg-type]
        self.app = HttpApplication(AccessControl(guard, trail), RequestDurations())
        self.app.router.add("POST", "/admin/things/{name}", BodyHandler(SetRequest, self._act))
        self.app.router.add("GET", "/admin/things/{name}", self._look)

    async def _act(self, request: Request, body: SetRequest) -> Reply:
        if self.end is not None:
            raise self.end
        request.changed({"value": 1}, {"value": body.value})
        return json_reply({})

    async def _look(self, _request: Request) -> Reply:
        return json_reply({})

    async def send(
        self,
        body: Any = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
        path: str = "/admin/things/a%20b",
        method: str = "POST",
        **scope: Any,
    ) -> int:
        """Send a request; returns the status."""
        return await sent(self.app, method, path, body, headers, **scope)

    @property
    def line(self) -> dict[str, Any]:
        """The only line."""
        (found,) = self.kept.lines
        return found


async def sent(
    app: HttpApplication,
    method: str,
    path: str,
    body: Any = None,
    headers: Iterable[tuple[bytes, bytes]] = (),
    **scope: Any,
) -> int:
    """Send a request to an application; returns the status."""
    messages: list[dict[str, Any]] = []
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    whole = {"method": method, "raw_path": path.encode(), "headers": list(headers), "query_string": b"", **scope}
    await app(whole, receive, send)
    status: int = messages[0]["status"]
    return status


@pytest.mark.parametrize(("value", "words"), [(0, ": value=0"), (False, ""), (True, ": value=true"), ("", "")])
async def test_a_zero_is_a_value_of_an_act(value: object, words: str) -> None:
    """It ends a limit, so that the words of the act have it; what is false or empty is left out."""
    recorded = Recorded()
    await recorded.send({"by": "ann", "value": value})
    assert recorded.line["what"]["act"] == f"POST /admin/things/a b{words}"


async def test_a_line_names_who_from_where_what_and_how_it_ended() -> None:
    """Every key of a line, for an act that was done."""
    recorded = Recorded()
    await recorded.send(
        {"by": "ann@desk", "reason": "maintenance", "value": 2}, client=("192.0.2.7", 4711),
        **{PEER_NAMES: frozenset({NodeName("east", "n2")})},
    )  # fmt: skip
    assert recorded.line == {
        "id": 1,
        "at": "2023-11-14T22:13:20.123Z",
        "at_ms": NOW_MS,
        "node": "n1",
        "who": {"by": "ann@desk", "role": None, "token": None, "certificate": [NodeName("east", "n2").uri()]},
        "from": "192.0.2.7:4711",
        "via": "http",
        "what": {
            "act": "POST /admin/things/a b: value=2",
            "route": "POST /admin/things/{name}",
            "path": "/admin/things/a%20b",
            "request": {"value": 2},
        },
        "before": {"value": 1},
        "after": {"value": 2},
        "reason": "maintenance",
        "outcome": "done",
        "status": 200,
        "error": None,
    }


async def test_requests_that_read_and_dry_runs_are_not_recorded() -> None:
    """A GET and a dry run are not recorded; a refused dry run is not, either, since it changed nothing."""
    recorded = Recorded()
    assert await recorded.send(method="GET") == 200
    assert await recorded.send({"dry_run": True}) == 200
    recorded.end = RequestRefused(409, "changed", "look again")
    assert await recorded.send({"dry_run": True}) == 409
    assert recorded.kept.lines == []


async def test_a_dry_run_that_the_body_has_no_right_to_is_recorded() -> None:
    """The parsed struct decides: a text "true", or an unknown key, does not hide the act."""
    for body in ({"dry_run": "true"}, {"dry_run": True, "unknown": 1}, b"{", b"[]"):
        recorded = Recorded()
        assert await recorded.send(body) == 400
        assert (recorded.line["outcome"], recorded.line["error"].partition(":")[0]) == ("refused", "bad-json")


async def test_an_act_whose_query_is_refused_is_recorded() -> None:
    """Covered are an unknown parameter and one that is repeated."""
    for query, named in ((b"value=2", "value"), (b"x=1&x=1", "x is there more than once")):
        recorded = Recorded()
        assert await recorded.send({"value": 2}, query_string=query) == 400
        assert (recorded.line["outcome"], recorded.line["status"]) == ("refused", 400)
        assert recorded.line["error"].startswith("bad-query: ")
        assert named in recorded.line["error"]


@pytest.mark.parametrize(
    ("end", "outcome", "status", "error"),
    [
        (RequestRefused(409, "changed", "look again"), "refused", 409, "changed: look again"),
        (NotReady("no leader"), "refused", 503, "not-ready: no leader"),
        (OutcomeUnknown("no answer"), "unknown", 504, "outcome-unknown: no answer; outcome=unknown"),
        (ZeroDivisionError("x"), "unknown", 500, "internal error, see the node's log"),
    ],
)
async def test_an_act_that_fails_is_recorded_with_the_reason(
    end: BaseException, outcome: str, status: int, error: str, logged: Any
) -> None:
    """A refused act changed nothing; the outcome of a failed one is unknown."""
    recorded = Recorded()
    recorded.end = end
    assert await recorded.send({"by": "ann"}) == status
    line = recorded.line
    assert (line["outcome"], line["status"], line["error"]) == (outcome, status, error)
    assert (line["before"], line["after"], line["who"]["by"]) == (None, None, "ann")


async def test_an_act_that_the_stop_cuts_is_recorded_as_unknown(logged: Any) -> None:
    """The drain cancels it; the line is written without a wait."""
    recorded = Recorded()
    recorded.end = asyncio.CancelledError()
    with pytest.raises(IndexError):  # no answer was sent
        await recorded.send({"by": "ann"})
    assert (recorded.line["outcome"], recorded.line["error"]) == ("unknown", "the node stopped")


@pytest.mark.parametrize(
    ("headers", "via"),
    [
        ([(b"x-isthmus-via", b"cli")], "cli"),
        ([(b"x-isthmus-via", b"dashboard")], "dashboard"),
        ([(b"x-isthmus-via", b"<b>")], "http"),
        ([(b"sec-fetch-site", b"same-origin")], "dashboard"),
        ([(b"user-agent", b"curl/8")], "http"),
    ],
)
async def test_the_way_is_the_claim_of_the_request(headers: list[tuple[bytes, bytes]], via: str) -> None:
    """It is one of three words; browsers are recognized."""
    recorded = Recorded()
    await recorded.send({}, headers)
    assert recorded.line["via"] == via


async def test_a_known_token_is_named_by_role_and_digest_and_never_shown(folder: CertificateFolder) -> None:
    """This holds even if the request repeats it; a token without the role is recorded as refused; an unknown one is
    not."""
    files = {role: folder.path / f"{role}.token" for role in ("operate", "admin")}
    guard = Guard("admin", TokenSettings(**files))
    recorded = Recorded(guard)
    token = folder.token(TokenRole.ADMIN)
    bearer = [(b"authorization", f"Bearer {token}".encode())]
    assert (
        await recorded.send({"by": token, "reason": f"as {token}!", "value": [{"x": token}], token: 1}, bearer) == 400
    )
    assert await recorded.send({"value": f"{token}", "by": f"not {token}"}, bearer) == 200
    low = [(b"authorization", f"Bearer {folder.token(TokenRole.OPERATE)}".encode())]
    assert await recorded.send({"by": "eve"}, low) == 403
    assert await recorded.send({}, [(b"authorization", b"Bearer unknown-unknown-unknown")]) == 401
    assert await recorded.send({}) == 401
    refused, done, forbidden = recorded.kept.lines
    assert (done["who"]["role"], done["after"], done["who"]["by"]) == ("admin", {"value": REDACTED}, f"not {REDACTED}")
    assert done["who"]["token"].startswith("sha256:")
    assert refused["outcome"] == "refused"
    assert (forbidden["who"]["role"], forbidden["who"]["by"], forbidden["status"]) == ("operate", None, 403)
    assert forbidden["what"]["act"] == "POST /admin/things/a b"
    assert token not in json.dumps(recorded.kept.lines)
    assert folder.token(TokenRole.OPERATE) not in json.dumps(recorded.kept.lines)


async def test_secrets_in_bodies_are_redacted() -> None:
    """By their names, and in URLs; files are named, not read."""
    recorded = Recorded()
    body = {
        "password": "hunter2",
        "urls": "http://ann:hunter2@host:1,https://h/",
        "value": {"api_key": "k", "token_file": "/t"},
    }
    await recorded.send(body)
    assert "hunter2" not in json.dumps(recorded.line)
    assert recorded.line["what"]["request"] == {
        "password": REDACTED,
        "urls": f"http://{REDACTED}@host:1,https://h/",
        "value": {"api_key": REDACTED, "token_file": "/t"},
    }


def test_what_is_nested_without_end_is_left_out() -> None:
    """The deepest body that a parser accepts causes no error: the line keeps DEPTH_MAX levels of it."""
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    assert json.dumps(redacted(deep)).count("[") == audit.DEPTH_MAX + 1


def test_large_values_are_recorded_by_their_beginning() -> None:
    """With the number of bytes that they had."""
    assert bounded({"a": "x" * 100}) == {"a": "x" * 100}
    cut = bounded(["ä" * 10] * 1_000)
    assert (cut["bytes"], cut["start"][:5], len(cut["start"])) == (24_000, '["äää', audit.VALUE_BYTES_MAX // 4)


def test_values_that_json_does_not_have_are_text() -> None:
    """A handler's value never keeps its line from being written."""
    found = bounded({"path": Path("/x"), ("a", 1): 2, 3: (4, 5), "raw": b"\xff"})
    assert found == {"path": "/x", "3": [4, 5], "raw": "b'\\xff'"}


async def test_words_of_an_act_are_bounded() -> None:
    """Thousands of names are truncated."""
    recorded = Recorded()
    await recorded.send({"value": ["k" * 20] * 5_000, "urls": "u" * 1_000}, path="/admin/things/" + "n" * 2_000)
    what = recorded.line["what"]
    assert (len(what["act"]), what["act"][-3:]) == (audit.ACT_CHARS_MAX, "...")
    assert len(json.dumps(recorded.line)) < 5_000


async def test_an_act_without_a_request_is_recorded() -> None:
    """A reload by a signal has a line, too, also if it fails."""
    recorded = Recorded()
    assert isinstance(recorded.app.audit, AuditTrail)
    await recorded.app.audit.local("reload", "signal", None)
    await recorded.app.audit.local("reload", "signal", "n1.toml: no such file")
    done, failed = recorded.kept.lines
    assert (done["via"], done["what"]["act"], done["outcome"], done["error"]) == ("signal", "reload", "done", None)
    assert (failed["outcome"], failed["error"]) == ("unknown", "n1.toml: no such file")


THIS = ThisNode("n", "c", b"")


def all_routes(client_api: ClientApi) -> dict[str, HttpApplication]:
    """Both applications with all routes of a node."""
    nothing: Any = SimpleNamespace(object_bytes=1, key_bytes=1, batch_items=1, batch_bytes=1)
    PropertyRoutes(nothing, client_api)
    TreeRoutes(nothing, nothing, client_api, THIS, wall_ms=lambda: 0)
    RowRoutes(nothing, nothing, nothing, nothing, nothing, client_api, THIS)
    admin_api = AdminApi(SimpleNamespace(), FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]
    Dashboard(admin_api, None, "c", "n")
    return {"admin": admin_api, "http": client_api}


def changing(app: HttpApplication) -> set[tuple[str, str]]:
    """(method, pattern) of every route except a GET that only reads."""
    return {
        (method, pattern)
        for pattern, method, _ in app.router.routes()
        if method != "GET" or not only_reads(method, pattern.encode())
    }


def test_every_route_that_may_change_something_is_an_act_or_listed_as_none(
    client_api: ClientApiFixture,
) -> None:
    """A new route fails here until it has words in ACTS, or a reason in NOT_ACTS; neither table names a route that is
    gone."""
    routes = set.union(*(changing(app) for app in all_routes(client_api.app).values()))
    assert sorted(routes - ACTS.keys() - NOT_ACTS.keys()) == [], "need words in node.http.audit.ACTS"
    assert sorted((ACTS.keys() | NOT_ACTS.keys()) - routes) == [], "are routes no more"
    assert not ACTS.keys() & NOT_ACTS.keys()


async def test_every_act_is_recorded(client_api: ClientApiFixture, logged: Any) -> None:
    """A request to each route of both listeners leaves one line if the route is an act, with any outcome, and none
    otherwise."""
    for listener, app in all_routes(client_api.app).items():
        for method, pattern in sorted(changing(app)):
            kept = MemoryJournal()
            app.audit = AuditTrail("n1", kept, SimpleNamespace(wall_ms=lambda: NOW_MS), None)  # type: ignore[arg-type]
            path = pattern.replace("{", "").replace("}", "")
            await sent(app, method, path, b"no JSON", query_string=b"filter=none" if method == "GET" else b"")
            routes = [each["what"]["route"] for each in kept.lines]
            assert routes == ([f"{method} {pattern}"] if (method, pattern) in ACTS else []), (listener, pattern)
            if kept.lines:
                assert kept.lines[0]["outcome"] in ("refused", "unknown")
                assert "{" not in kept.lines[0]["what"]["act"]


async def test_a_route_that_nobody_thought_of_is_recorded_all_the_same() -> None:
    """The act's words are missing then, but the line is written."""
    recorded = Recorded()

    async def act(_request: Request) -> Reply:
        return Reply(204, [])

    recorded.app.router.add("DELETE", "/new/{thing}", act)
    await recorded.send(method="DELETE", path="/new/x")
    assert (recorded.line["what"]["act"], recorded.line["outcome"]) == ("DELETE /new/x", "done")


async def test_values_that_cannot_be_shown_cost_no_act_its_answer(logged: list[Any]) -> None:
    """The act is answered as ever; its line has route and outcome, and says that the values are lacking."""

    class Mute:
        def __str__(self) -> str:
            raise OSError("not shown")

    recorded = Recorded()
    ring: dict[Any, Any] = {3: Mute()}

    async def act(request: Request, _body: SetRequest) -> Reply:
        request.changed(ring, {(1, 2): "pair"})
        return json_reply({})

    recorded.app.router.add("POST", "/admin/rings/{name}", BodyHandler(SetRequest, act))
    assert await recorded.send({"value": 1}, path="/admin/rings/a") == 200
    assert recorded.line["what"]["act"].endswith("(its values cannot be shown)")
    assert (recorded.line["outcome"], recorded.line["status"]) == ("done", 200)
    assert [each["event"] for each in logged] == ["audit.line_failed"]


async def test_a_get_that_changes_something_is_recorded_with_its_filter(send_request: Any) -> None:
    """With how much was done; one that only counts is not, and neither are folds that read."""
    kept, wall = MemoryJournal(), SimpleNamespace(wall_ms=lambda: NOW_MS)
    trail = AuditTrail("n1", kept, wall, None)  # type: ignore[arg-type]
    client_api = make_client_api(access=AccessControl(None, trail))
    act = b64encode(json.dumps({"change_method": "local"}).encode()).decode()
    client_api.folds.pages = [Page(matched=3, done=2, refused=Counter({"waits": 1}))]
    assert (await send_request(client_api.app, "GET", f"/reap/types/t/buckets/b?filter={act}")).status == 200
    (line,) = kept.lines
    assert line["what"]["act"] == 'reap tombstones of bucket t/b: filter={"change_method": "local"}'
    assert line["after"] == {"matched": 3, "done": 2, "refused": {"waits": 1}}
    assert line["outcome"] == "done"
    for path in ("/reap/buckets/b", "/erase/buckets/b", "/tombs/buckets/b", "/objectstats/buckets/b"):
        assert (await send_request(client_api.app, "GET", path)).status == 200
    assert len(kept.lines) == 1
    assert (await send_request(client_api.app, "GET", "/rangerepair/buckets/b")).status == 200
    assert kept.lines[-1]["what"]["act"] == "repair keys of bucket default/b"
