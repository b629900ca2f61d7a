"""What `isthmus explain` asks of another cluster: HEAD of the key, with the credentials of the full-sync, for any
name."""

from __future__ import annotations

import pytest

from isthmus.node.http.authorization import Guard, TokenRole
from isthmus.node.services.remote_lookup import other_side
from isthmus.repl.http.client import PeerCredentials
from isthmus.repl.model.keys import Key
from isthmus.repl.model.vclock import decode_clock, increment
from tests.support.tls_files import CertificateFolder, folder
from tests.unit.node.http.test_authorization import settings_of

__all__ = ["folder"]

PUT = b"PUT %b HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\ncontent-length: 1\r\nconnection: close\r\n\r\nv"


@pytest.mark.parametrize(
    ("path", "key"),
    [
        (b"/buckets/towns/keys/corinth", Key(b"default", b"towns", b"corinth")),
        (b"/types/default/buckets/%2E%2E/keys/k", Key(b"default", b"..", b"k")),
        (b"/types/default/buckets/b/keys/%2E", Key(b"default", b"b", b".")),
        (b"/types/default/buckets/%2E%2E/keys/%2E%2E", Key(b"default", b"..", b"..")),
        (b"/types/default/buckets/a%2Fb/keys/%FF%00", Key(b"default", b"a/b", b"\xff\0")),
    ],
)
def test_a_key_of_any_name_is_found_with_the_role_replicate(
    client_api, server, folder: CertificateFolder, path: bytes, key: Key
) -> None:
    """With the token that sinks and full-sync have, the state is known: absent, then ahead or equal; behind a delete
    that had seen it and was reaped here. Names that are steps of a path are asked for as names."""
    client_api.app.guard = None
    access = PeerCredentials(None, "", lambda: folder.token(TokenRole.REPLICATE))
    url = f"http://127.0.0.1:{server.port}"
    guard = Guard("http", settings_of(folder))
    client_api.app.guard = guard
    assert other_side(url, key, None, access)["state"] == "absent"
    client_api.app.guard = None
    assert b" 204 " in server.exchange(PUT % path)
    client_api.app.guard = guard
    found = other_side(url, key, None, access)
    assert (found["state"], found["reason"]) == ("ahead", "")
    clock = decode_clock(bytes.fromhex(found["clock"]))
    assert other_side(url, key, clock, access)["state"] == "equal"
    deleted = increment(clock, b"a" * 20, 1, 0)
    found = other_side(url, key, None, access, reaped=deleted)
    assert (found["state"], found["reason"]) == ("behind", "it still has what was deleted and reaped here")
    assert other_side(url, key, None, access, reaped=increment((), b"a" * 20, 1, 0))["state"] == "ahead"


@pytest.mark.parametrize("role", [None, TokenRole.OPERATE, TokenRole.WRITE, TokenRole.READ])
def test_a_token_that_is_not_enough_is_said_to_lack_a_role(
    client_api, server, folder: CertificateFolder, role: TokenRole | None
) -> None:
    """Without a token the reason names the roles of which one is needed; every role that reads is enough."""
    client_api.app.guard = Guard("http", settings_of(folder))
    access = PeerCredentials(None, "", None if role is None else lambda: folder.token(role))
    found = other_side(f"http://127.0.0.1:{server.port}", Key(b"default", b"b", b"k"), None, access)
    if role is None:
        assert found["state"] == "unknown"
        assert "it answers 401: it asks for a token with the role read or replicate" in found["reason"]
    else:
        assert found["state"] == "absent"
