"""Which requests a web page of another place made a browser send: what they would change is refused.

Everybody who reads a page lets it send requests from their machine, to 127.0.0.1 too, where listeners without tokens
let all programs of the machine in. A browser says where such a request is from; programs say nothing of the kind.
Reading is left alone: without headers that permit it, and there are none here, a browser keeps the answer to itself.
"""

from __future__ import annotations

from typing import Final

from isthmus.node.http.responses import Headers, RequestRefused

OF_BROWSERS: Final = frozenset((b"origin", b"sec-fetch-site"))
"""What browsers add to requests of pages, and pages cannot change (Fetch Standard; Fetch Metadata)."""

_CHANGE_NOTHING: Final = ("GET", "HEAD", "OPTIONS")
_OWN_SITES: Final = (b"same-origin", b"none")


def check_origin(method: str, headers: Headers) -> None:
    """Raises Refused (403 `other-origin`) when a request that may change something is of a page of another host or
    port than the one it is sent to. Which that is, `Host` says."""
    if method in _CHANGE_NOTHING:
        return
    for name, _ in headers:
        if name in OF_BROWSERS:
            break
    else:
        return
    hosts = [value.strip().lower() for name, value in headers if name == b"host"]
    for name, value in headers:
        if name == b"origin":
            foreign = [value.strip().lower().partition(b"://")[2]] != hosts
        else:
            foreign = name == b"sec-fetch-site" and value.strip().lower() not in _OWN_SITES
        if foreign:
            shown = f"{name.decode()}: {value[:100].decode('ascii', 'backslashreplace')}"
            sentence = f"a page of another place may change nothing here ({shown}); programs leave that header out"
            raise RequestRefused(403, "other-origin", sentence)
