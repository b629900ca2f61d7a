"""Claims about the dashboard's routes: files with their headers, and the login of browsers with tokens."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from isthmus.config.settings import TokenSettings
from isthmus.node.dashboard.files import dashboard_files
from isthmus.node.dashboard.routes import CONTENT_SECURITY_POLICY, Dashboard
from isthmus.node.http.application import PEER_NAMES, AccessControl, HttpApplication, Request, json_reply
from isthmus.node.http.authorization import Guard, TokenRole
from isthmus.node.http.durations import RequestDurations
from isthmus.node.http.responses import Headers, Reply
from isthmus.node.http.sessions import LoginSessions
from tests.support.tls_files import CertificateFolder

SAME_ORIGIN = (b"sec-fetch-site", b"same-origin")


class Answer(NamedTuple):
    """An answer as a browser sees it."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def value(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Node:
    """An admin listener's application with the dashboard and one act of each role, called in memory."""

    def __init__(self, tokens: TokenSettings | None = None) -> None:
        self.sessions = LoginSessions("isthmus-c-n")
        guard = None if tokens is None else Guard("admin", tokens, self.sessions)
        self.app = HttpApplication(AccessControl(guard, None), RequestDurations())
        Dashboard(self.app, guard, "c", "n")
        self.app.router.add("GET", "/admin/cluster", self._act)
        self.app.router.add("POST", "/admin/leaders/balance", self._act)
        self.app.router.add("POST", "/admin/options/x/set", self._act)

    async def _act(self, _request: Request) -> Reply:
        return json_reply({"done": True})

    async def send(
        self, method: str, path: str, body: Any = None, headers: Headers | None = None, *, tls: bool = False
    ) -> Answer:
        """One request."""
        sent: list[dict[str, Any]] = []
        scope: dict[str, Any] = {
            "method": method, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"host", b"n.example:8099"), *(headers or [])],
        }  # fmt: skip
        if tls:
            scope[PEER_NAMES] = frozenset()

        async def receive() -> dict[str, Any]:
            raw = b"" if body is None else json.dumps(body).encode()
            return {"type": "http.request", "body": raw, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        return Answer(sent[0]["status"], dict(sent[0]["headers"]), b"".join(m.get("body", b"") for m in sent[1:]))

    async def log_in(self, token: str) -> Headers:
        """The headers of a browser that has logged in with a token."""
        answer = await self.send("POST", "/dashboard/session", {"token": token})
        assert answer.status == 200
        return [(b"cookie", answer.headers[b"set-cookie"].partition(b";")[0])]


@pytest.fixture
def open_node() -> Node:
    """Without tokens."""
    return Node()


@pytest.fixture
def node(folder: CertificateFolder) -> Node:
    """With tokens of every role."""
    return Node(TokenSettings(**{role.value: folder.path / f"{role.value}.token" for role in TokenRole}))


def bearer(folder: CertificateFolder, role: TokenRole) -> Headers:
    """The headers of a program with a token of a role."""
    return [(b"authorization", f"Bearer {folder.token(role)}".encode())]


@pytest.mark.parametrize("path", ["/", *(f"/dashboard/{name}" for name in dashboard_files() if "/" in name)])
async def test_every_file_is_served_with_its_headers(node: Node, path: str) -> None:
    """Each file comes without a token, with its type, the security policy and no sniffing; unchanged it is a 304."""
    answer = await node.send("GET", path)
    file = dashboard_files()[path.removeprefix("/dashboard/") if path != "/" else "index.html"]
    assert (answer.status, answer.body) == (200, file.body)
    assert answer.headers[b"content-type"] == file.content_type
    assert answer.headers[b"content-security-policy"] == CONTENT_SECURITY_POLICY
    assert answer.headers[b"x-content-type-options"] == b"nosniff"
    assert answer.headers[b"x-frame-options"] == b"DENY"
    assert answer.headers[b"cache-control"] == b"no-cache"
    etag = answer.headers[b"etag"]
    again = await node.send("GET", path, headers=[(b"if-none-match", b'"other", W/' + etag)])
    assert (again.status, again.body, again.headers[b"etag"]) == (304, b"", etag)
    assert (await node.send("HEAD", path)).body == b""


def test_the_policy_allows_nothing_inline_and_nothing_elsewhere() -> None:
    """No directive allows inline code, eval, another origin, or frames."""
    policy = dict(each.split(b" ", 1) for each in CONTENT_SECURITY_POLICY.split(b"; "))
    assert policy.pop(b"img-src") == b"'self' data:"
    assert policy.pop(b"require-trusted-types-for") == b"'script'"
    assert set(policy.values()) == {b"'none'", b"'self'"}
    assert {name for name, value in policy.items() if value == b"'none'"} >= {
        b"default-src", b"frame-ancestors", b"base-uri", b"trusted-types",
    }  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        "/dashboard", "/dashboard/", "/dashboard/js/", "/dashboard/js/nothing.js", "/dashboard/../files.py",
        "/dashboard/%2e%2e/files.py", "/dashboard/js/%2e%2e%2findex.html", "/dashboard/js/../index.html",
        "/dashboard/%2e/index.html", "/dashboard/js/app.js%00", "/dashboard/js%2fapp.js", "//dashboard/js/app.js",
        "/dashboard/js/types.d.ts", "/dashboard//index.html", "/dashboard/%ff/%ff",
    ],
)  # fmt: skip
async def test_nothing_but_the_files_is_served(open_node: Node, path: str) -> None:
    """Unknown names, other folders by any spelling, and files that are not served are all 404."""
    assert (await open_node.send("GET", path)).status == 404


async def test_files_cannot_be_written(open_node: Node) -> None:
    """A file answers GET and HEAD alone."""
    assert (await open_node.send("POST", "/dashboard/js/app.js", {})).status == 405


async def test_without_tokens_there_is_no_login(open_node: Node) -> None:
    """The session has every role, and requests for a login are refused with the reason."""
    session = (await open_node.send("GET", "/dashboard/session")).value
    assert session == {"cluster": "c", "node": "n", "login": False, "roles": [role.value for role in TokenRole]}
    for path in ("/dashboard/session", "/dashboard/session/end", "/dashboard/links"):
        assert (await open_node.send("POST", path, {})).status == 409


async def test_a_token_opens_a_session_with_its_roles(node: Node, folder: CertificateFolder) -> None:
    """The session has exactly the roles of its token, and shows them; without it only the files are served."""
    assert (await node.send("GET", "/dashboard/session")).value["roles"] is None
    assert (await node.send("GET", "/admin/cluster")).status == 401
    browser = await node.log_in(folder.token(TokenRole.READ))
    assert (await node.send("GET", "/dashboard/session", headers=browser)).value["roles"] == ["read"]
    assert (await node.send("GET", "/admin/cluster", headers=browser)).status == 200
    assert (await node.send("POST", "/admin/leaders/balance", {}, [*browser, SAME_ORIGIN])).status == 403
    operator = [*await node.log_in(folder.token(TokenRole.OPERATE)), SAME_ORIGIN]
    assert (await node.send("POST", "/admin/leaders/balance", {}, operator)).status == 200
    assert (await node.send("POST", "/admin/options/x/set", {}, operator)).status == 403


async def test_a_wrong_token_opens_nothing(node: Node, folder: CertificateFolder) -> None:
    """Unknown tokens are 401, one that may not read is 403, and both or neither of token and code is 400."""
    for body, status in (
        ({"token": "wrong"}, 401),
        ({"code": "wrong"}, 401),
        ({"token": folder.token(TokenRole.REPLICATE)}, 403),
        ({}, 400),
        ({"token": "a", "code": "b"}, 400),
    ):
        answer = await node.send("POST", "/dashboard/session", body)
        assert answer.status == status, body
        assert b"set-cookie" not in answer.headers
        assert b"www-authenticate" not in answer.headers
    assert node.app.guard is not None
    assert node.app.guard.refused == {401: 2, 403: 1}


async def test_a_link_logs_in_once_with_the_role_of_who_made_it(node: Node, folder: CertificateFolder) -> None:
    """`POST /dashboard/links` needs a token that reads; its code opens one session of that token's roles."""
    assert (await node.send("POST", "/dashboard/links", {})).status == 401
    assert (await node.send("POST", "/dashboard/links", {}, bearer(folder, TokenRole.REPLICATE))).status == 403
    link = (await node.send("POST", "/dashboard/links", {}, bearer(folder, TokenRole.OPERATE))).value
    assert link["expires_s"] == 300
    path, _, code = link["path"].partition("#login=")
    assert path == "/"
    answer = await node.send("POST", "/dashboard/session", {"code": code})
    assert (answer.status, answer.value["roles"]) == (200, ["read", "write", "operate"])
    assert (await node.send("POST", "/dashboard/session", {"code": code})).status == 401


async def test_a_logout_ends_the_session(node: Node, folder: CertificateFolder) -> None:
    """After it the cookie is invalid, and the answer deletes it in the browser; no password dialog appears."""
    browser = await node.log_in(folder.token(TokenRole.READ))
    answer = await node.send("POST", "/dashboard/session/end", {}, [*browser, SAME_ORIGIN])
    assert (answer.status, answer.value["roles"]) == (200, None)
    assert answer.headers[b"set-cookie"].startswith(b"isthmus-c-n=; ")
    refused = await node.send("GET", "/admin/cluster", headers=browser)
    assert refused.status == 401
    assert b"www-authenticate" not in refused.headers


@pytest.mark.parametrize(
    ("headers", "challenges"),
    [([], 2), ([(b"x-isthmus-via", b"dashboard")], 0), ([(b"accept", b"text/event-stream")], 0),
     ([(b"x-isthmus-via", b"cli")], 2)],
)  # fmt: skip
async def test_a_page_without_its_cookie_provokes_no_password_dialog(
    node: Node, headers: Headers, challenges: int
) -> None:
    """A request of a page is refused without a challenge, also when the browser has no cookie any more; a program gets
    the challenge, which names the scheme."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"method": "GET", "raw_path": b"/admin/cluster", "query_string": b"", "headers": headers}
    await node.app(scope, lambda: pytest.fail("nothing is read"), send)
    assert sent[0]["status"] == 401
    assert [name for name, _ in sent[0]["headers"]].count(b"www-authenticate") == challenges


async def test_a_session_ends_with_its_token(folder: CertificateFolder, tmp_path: Any) -> None:
    """Removing a token from its file ends its sessions."""
    file = tmp_path / "read.token"
    file.write_text("a-token-of-some-length-0123456789\n")
    file.chmod(0o600)
    node = Node(TokenSettings(read=file))
    browser = await node.log_in("a-token-of-some-length-0123456789")
    assert (await node.send("GET", "/admin/cluster", headers=browser)).status == 200
    file.write_text("another-token-of-some-length-0123\n")
    assert node.app.guard is not None
    assert [watched.reload() for watched in node.app.guard.watched()] == [""]
    assert (await node.send("GET", "/admin/cluster", headers=browser)).status == 401


async def test_the_cookie_is_secure_under_tls(node: Node, folder: CertificateFolder) -> None:
    """Only the cookie of a TLS connection is Secure: without TLS a browser would drop it."""
    body = {"token": folder.token(TokenRole.READ)}
    plain = await node.send("POST", "/dashboard/session", body)
    over_tls = await node.send("POST", "/dashboard/session", body, tls=True)
    assert b"; HttpOnly; SameSite=Strict" in plain.headers[b"set-cookie"]
    assert b"Secure" not in plain.headers[b"set-cookie"]
    assert over_tls.headers[b"set-cookie"].endswith(b"; HttpOnly; SameSite=Strict; Secure")


async def test_a_session_changes_nothing_for_other_pages(node: Node, folder: CertificateFolder) -> None:
    """A change in a session requires the browser's header that the page is this node's; a token needs none."""
    browser = await node.log_in(folder.token(TokenRole.OPERATE))
    path = "/admin/leaders/balance"
    for header, status in (
        (None, 403),
        ((b"origin", b"http://elsewhere.example"), 403),
        ((b"sec-fetch-site", b"cross-site"), 403),
        ((b"origin", b"http://n.example:8099"), 200),
        (SAME_ORIGIN, 200),
    ):
        answer = await node.send("POST", path, {}, [*browser, *([header] if header else [])])
        assert answer.status == status, header
    assert (await node.send("POST", path, {}, bearer(folder, TokenRole.OPERATE))).status == 200
