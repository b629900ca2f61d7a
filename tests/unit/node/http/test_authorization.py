"""Tokens and roles: the role that each request needs, the answer without it, and that no secret is shown."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from isthmus.config.settings import TokenSettings
from isthmus.node.http.application import AccessControl, HttpApplication, Request, text_reply
from isthmus.node.http.authorization import INCLUDES, Guard, TokenRole, admin_roles, guard_of, http_roles
from isthmus.node.http.durations import RequestDurations
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.observability.traces import read_headers
from isthmus.repl.model.errors import BadConfig
from isthmus.repl.security import tokens
from tests.support.tls_files import CertificateFolder

R, W, O, P, A = TokenRole.READ, TokenRole.WRITE, TokenRole.OPERATE, TokenRole.REPLICATE, TokenRole.ADMIN  # noqa: E741


def settings_of(folder: CertificateFolder, **more: Any) -> TokenSettings:
    """All five files."""
    return TokenSettings(**{role.value: folder.path / f"{role.value}.token" for role in TokenRole}, **more)


def status(guard: Guard, method: str, path: str, credential: str | None = None) -> int:
    """The status of a guard's answer; 200 if the request is permitted."""
    headers = [] if credential is None else [(b"authorization", credential.encode())]
    try:
        guard.check(method, path.encode(), headers)
    except RequestRefused as refused:
        return refused.status
    return 200


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/ping", set()),
        ("GET", "/livez", set()),
        ("GET", "/readyz", set()),
        ("GET", "/metrics", {R}),
        ("GET", "/buckets/b/keys/k", {R}),
        ("HEAD", "/types/t/buckets/b/keys/k", {R, P}),
        ("HEAD", "/buckets/b/keys/k", {R, P}),
        ("HEAD", "/buckets/b/keys", {R}),
        ("HEAD", "/buckets", {R}),
        ("GET", "/types/t/buckets/b/keys/k", {R}),
        ("POST", "/batch/get", {R}),
        ("POST", "/batch/put", {W}),
        ("PUT", "/buckets/b/keys/k", {W}),
        ("DELETE", "/buckets/b/keys/k", {W}),
        ("POST", "/buckets/b/keys", {W}),
        ("PUT", "/riak/b/k", {W}),
        ("PUT", "/buckets/b/keys/props", {W}),
        ("PUT", "/buckets/b/props", {O}),
        ("DELETE", "/types/t/buckets/b/props", {O}),
        ("PUT", "/types/t/props", {O}),
        ("PUT", "/riak/b", {O}),
        ("POST", "/queues/q/fetch", {P}),
        ("GET", "/queues/q/fetch", {P}),
        ("POST", "/queuename/q", {O, P}),
        ("GET", "/queuename/q", {P}),
        ("POST", "/trees/roots", {R, P}),
        ("POST", "/trees/clocks", {R, P}),
        ("POST", "/trees/repair", {P}),
        ("POST", "/rows", {R, P}),
        ("POST", "/rows/changes", {R, P}),
        ("GET", "/rows/plan", {R, P}),
        ("GET", "/rows/queues", {R, P}),
        ("POST", "/batch/push", {P}),
        ("POST", "/batch/push/", {P}),
        ("GET", "/cluster/nodes", set(TokenRole)),
        ("GET", "/membership_request", set(TokenRole)),
        ("GET", "/cachedtrees/nvals/3/root", {R, P}),
        ("GET", "/rangetrees/types/t/buckets/b/keysclocks", {R, P}),
        ("GET", "/cluster/routes", {R}),
        ("GET", "/aaebucketlist", {R}),
        ("GET", "/objectstats/buckets/b", {R}),
        ("GET", "/tombs/types/t/buckets/b/", {R}),
        ("GET", "/rangerepl/buckets/b/queuename/q", {O}),
        ("GET", "/rangerepair/types/t/buckets/b", {O}),
        ("GET", "/reap/buckets/b", {A}),
        ("GET", "/erase/types/t/buckets/b/", {A}),
        ("HEAD", "/erase/buckets/b", {A}),
    ],
)
def test_requests_of_clients_need_the_least_role_that_does(method: str, path: str, needed: set[TokenRole]) -> None:
    """Reads need `read`, changes of objects `write`, properties `operate`, requests of sinks `replicate`; comparing
    trees and reading rows are reads, which sinks may do, too. Riak's folds need the role of what they change."""
    assert http_roles(method, path.encode()) == needed


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/readyz", set()),
        ("GET", "/admin/cluster", {R}),
        ("POST", "/admin/queues/q/suspend", {O}),
        ("POST", "/admin/queues/q/resume", {O}),
        ("POST", "/admin/sink/suspend", {O}),
        ("POST", "/admin/fullsync/set", {O}),
        ("POST", "/admin/fullsync/suspend", {O}),
        ("POST", "/admin/fullsync/peers/add", {A}),
        ("POST", "/admin/fullsync/peers/remove", {A}),
        ("POST", "/admin/leaders/balance", {O}),
        ("POST", "/admin/nodes/drain", {O}),
        ("POST", "/admin/moves/cancel", {O}),
        ("POST", "/admin/sink/dead-letters/drop", {A}),
        ("POST", "/admin/nodes/n/remove", {A}),
        ("POST", "/admin/partitions/3/force-leader", {A}),
        ("POST", "/admin/cluster/reseed", {A}),
        ("POST", "/admin/bucket-types/t", {A}),
        ("POST", "/admin/options/o/set", {A}),
        ("POST", "/admin/queues/q/suspend/more", {A}),
        ("POST", "/admin//queues/q/suspend", {A}),
        ("DELETE", "/something/new", {A}),
    ],
)
def test_operator_requests_need_operate_only_where_it_is_required(
    method: str, path: str, needed: set[TokenRole]
) -> None:
    """Changes that can be undone need `operate`; all others, known or not, need `admin`."""
    assert admin_roles(method, path.encode()) == needed


def test_a_token_permits_what_its_role_includes(folder: CertificateFolder) -> None:
    """Each role against a request of each kind: 200 where it includes what is needed, else 403, and 401 without."""
    guard = Guard("http", settings_of(folder))
    requests = {
        R: ("GET", "/"),
        W: ("PUT", "/buckets/b/keys/k"),
        O: ("PUT", "/types/t/props"),
        P: ("POST", "/queues/q/f"),
    }
    for role in TokenRole:
        for needed, (method, path) in requests.items():
            wanted = 200 if needed in INCLUDES[role] else 403
            assert status(guard, method, path, f"Bearer {folder.token(role)}") == wanted, (role, needed)
    assert status(guard, "GET", "/") == 401
    assert guard.refused[401] == 1


def test_only_a_complete_known_token_is_accepted(folder: CertificateFolder) -> None:
    """A token that is cut, extended, of another case or scheme, empty, or sent twice is 401; sent as a password it is
    accepted."""
    guard = Guard("http", settings_of(folder))
    token = folder.token(R)
    for wrong in ("", "Bearer", "Bearer ", f"Bearer {token[:-1]}", f"Bearer {token}x", token, f"Digest {token}"):
        assert status(guard, "GET", "/", wrong) == 401, wrong
    assert status(guard, "GET", "/", f"Basic {token}") == 401
    assert status(guard, "GET", "/", "Basic %%%") == 401
    assert status(guard, "GET", "/", f"Bearer {'a' * 5000}") == 401
    assert status(guard, "GET", "/", f"bearer  {token}") == 200
    assert status(guard, "GET", "/", f"Basic {b64encode(f'anybody:{token}'.encode()).decode()}") == 200
    both = [(b"authorization", f"Bearer {token}".encode()), (b"authorization", b"Bearer x")]
    with pytest.raises(RequestRefused) as refused:
        guard.check("GET", b"/", both)
    assert refused.value.status == 401


def test_http_may_be_open_for_some_and_metrics_for_all(folder: CertificateFolder) -> None:
    """`http_open` lets everybody read or write objects and nothing more; `metrics_open` shows metrics."""
    reading = Guard("http", settings_of(folder, http_open="read"))
    assert [status(reading, *r) for r in (("GET", "/"), ("PUT", "/buckets/b/keys/k"))] == [200, 401]
    writing = Guard("http", settings_of(folder, http_open="write"))
    assert [status(writing, *r) for r in (("PUT", "/buckets/b/keys/k"), ("PUT", "/types/t/props"))] == [200, 401]
    assert status(writing, "POST", "/queues/q/fetch") == 401
    admin = Guard("admin", settings_of(folder, http_open="write", metrics_open=True))
    assert [status(admin, *r) for r in (("GET", "/metrics"), ("GET", "/admin/cluster"))] == [200, 401]
    assert guard_of("http", TokenSettings()) is None


def test_tokens_are_reloaded_while_the_node_runs(tmp_path: Path) -> None:
    """Old and new tokens are valid while both are in the file; a removed one is not; a broken file changes nothing."""
    file = tmp_path / "t"
    file.write_text("old-token-0123456789\n")
    file.chmod(0o600)
    now = [0.0]
    watched = tokens.ReloadingFile((file,), lambda: tokens.read_digests(file), lambda: now[0])

    def good(token: str) -> bool:
        now[0] += 2.0
        return tokens.is_among(tokens.digest_of(token.encode()), watched.current())

    file.write_text("# both\nold-token-0123456789\nnew-token-0123456789\n")
    assert good("old-token-0123456789")
    assert good("new-token-0123456789")
    file.write_text(f"sha256:{tokens.digest_of(b'new-token-0123456789').hex()}\n")
    assert not good("old-token-0123456789")
    assert good("new-token-0123456789")
    with structlog.testing.capture_logs() as logs:
        file.write_text("no token secret!\n")
        assert good("new-token-0123456789")
    assert watched.failures == 1
    assert "secret" not in str(logs)
    assert f"{file}:1" in watched.why


def test_the_permissions_of_a_token_end_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that was accepted before has only the role of the current files: in another file it has that role, in
    none it is unknown; the others are unchanged."""
    monkeypatch.setattr("isthmus.repl.security.watched_files.RECHECK_S", 0.0)
    files = {role: tmp_path / f"{role.value}.token" for role in (R, W)}

    def write_tokens(**tokens_of: str) -> None:
        for role, file in files.items():
            file.write_text(tokens_of.get(role.value, "nobodys-token-0000000") + "\n")
            file.chmod(0o600)

    def answers(token: str) -> list[int]:
        return [status(guard, method, "/buckets/b/keys/k", f"Bearer {token}") for method in ("GET", "PUT", "GET")]

    one, other = "one-token-0123456789", "other-token-9876543210"
    write_tokens(read=other, write=one)
    guard = Guard("http", TokenSettings(**{role.value: file for role, file in files.items()}))
    assert (answers(one), answers(other)) == ([200, 200, 200], [200, 403, 200])
    write_tokens(read=f"{other}\n{one}")
    assert (answers(one), answers(other)) == ([200, 403, 200], [200, 403, 200])
    write_tokens(read=other)
    assert (answers(one), answers(other)) == ([401, 401, 401], [200, 403, 200])


def test_world_readable_files_are_refused(tmp_path: Path) -> None:
    """A token file with rights for others, one that is missing, and one with too many tokens, each in one sentence."""
    file = tmp_path / "t"
    with pytest.raises(BadConfig, match="no such file"):
        tokens.read_digests(file)
    file.write_text("a-token-of-16-and-more\n")
    file.chmod(0o644)
    with pytest.raises(BadConfig, match="chmod o-rw"):
        tokens.read_digests(file)
    file.chmod(0o640)
    assert tokens.read_token(file) == "a-token-of-16-and-more"
    file.write_text("a-token-of-16-and-more\n" * 65)
    with pytest.raises(BadConfig, match="at most 64"):
        tokens.read_digests(file)
    file.write_text(f"sha256:{'0' * 64}\n")
    with pytest.raises(BadConfig, match="no plain-text token"):
        tokens.read_token(file)


@pytest.mark.parametrize("what", ["PRIVATE KEY", "CERTIFICATE", "EC PRIVATE KEY"])
def test_a_key_named_by_mistake_is_not_shown_as_a_token(tmp_path: Path, what: str) -> None:
    """A file of a key or certificate, whose lines look like tokens, has no token; the refusal does not repeat its
    lines."""
    file = tmp_path / "ca.key"
    line = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg"
    file.write_text(f"-----BEGIN {what}-----\n{line}\n-----END {what}-----\n")
    file.chmod(0o600)
    for read in (tokens.read_token, tokens.read_digests):
        with pytest.raises(BadConfig, match="a key or a certificate") as refused:
            read(file)
        assert line not in str(refused.value)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\xef\xbb\xbfabcdefghijklmnopqrstuvwxyz", "begins with a byte-order mark"),
        ("abcdefghijklmnopqrstuvwxyz".encode("utf-16"), "is UTF-16"),
    ],
)
def test_a_file_of_secrets_in_another_encoding_is_named_as_one(tmp_path: Path, raw: bytes, why: str) -> None:
    """What an editor put before the text is named; the content is not repeated. Files of tokens and of headers."""
    file = tmp_path / "a.token"
    file.write_bytes(raw)
    file.chmod(0o600)
    for read in (tokens.read_token, tokens.read_digests, read_headers):
        with pytest.raises(BadConfig, match=re.escape(str(file))) as refused:
            read(file)
        assert why in str(refused.value)
        assert "abcdef" not in str(refused.value)


async def test_a_refusal_names_the_required_role_and_shows_no_secret(folder: CertificateFolder) -> None:
    """401 carries the challenges and 403 names the roles that would do, before any handler runs; neither answers nor
    logs repeat what was shown."""
    app = HttpApplication(AccessControl(Guard("http", settings_of(folder)), None), RequestDurations())
    ran: list[Request] = []

    async def handler(request: Request) -> Reply:
        ran.append(request)
        return text_reply("done\n")

    app.router.add("PUT", "/buckets/{b}/keys/{k}", handler)
    with structlog.testing.capture_logs() as logs:
        none = await answered(app, [])
        wrong = await answered(app, [(b"authorization", b"Bearer not-the-token-it-is")])
        role = await answered(app, [(b"authorization", f"Bearer {folder.token(R)}".encode())])
    assert [none[0], wrong[0], role[0]] == [401, 401, 403]
    assert [value for name, value in none[1] if name == b"www-authenticate"] == [
        b'Bearer realm="isthmus"',
        b'Basic realm="isthmus"',
    ]
    assert b"write or operate or admin" in role[2]
    assert not ran
    shown = str((none, wrong, role, logs))
    assert "not-the-token" not in shown
    assert folder.token(R) not in shown
    right = await answered(app, [(b"authorization", f"Bearer {folder.token(W)}".encode())])
    assert right[0] == 200
    assert len(ran) == 1


async def answered(
    app: HttpApplication, headers: list[tuple[bytes, bytes]]
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body of a PUT."""
    sent: list[dict[str, Any]] = []
    scope = {"method": "PUT", "raw_path": b"/buckets/b/keys/k", "headers": headers, "query_string": b""}
    receive: Callable[[], Awaitable[dict[str, Any]]] = _nothing

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], sent[0]["headers"], b"".join(m.get("body", b"") for m in sent[1:])


async def _nothing() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


def test_log_lines_need_more_than_reading() -> None:
    """They have names of clients and keys: `operate`, with a query or without."""
    assert admin_roles("GET", b"/admin/support") == admin_roles("GET", b"/admin/support?x=1") == {O}
    assert admin_roles("GET", b"/admin/events") == {R}
