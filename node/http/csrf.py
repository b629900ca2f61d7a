"""Refusal of requests that a web page of another origin made a browser send.

Every page lets a browser send requests from its user's machine, to 127.0.0.1 too, where listeners without tokens trust
all programs of the machine. A browser names the origin of such a request; programs send no such headers. Requests that
only read are allowed: without CORS headers, and there are none here, a browser hides the answer from the page.
"""

from __future__ import annotations

from typing import Final

from isthmus.node.http.responses import Headers, RequestRefused

VIA: Final = b"x-isthmus-via"
"""Header by which the command line and the dashboard name themselves; a claim, as `by` is."""

OF_BROWSERS: Final = frozenset((b"origin", b"sec-fetch-site"))
"""Headers that browsers add to requests of pages, and pages cannot change (Fetch Standard; Fetch Metadata)."""

_BROWSER: Final = b"mozilla/"
"""How the User-Agent of every browser begins; a page cannot change it for an image or a link."""

_CHANGE_NOTHING: Final = ("GET", "HEAD", "OPTIONS")
_OWN_SITES: Final = (b"same-origin", b"none")


def check_origin(method: str, headers: Headers) -> None:
    """Check that no page of another origin sent a request that may change something; the own origin is `Host`. Raises
    RequestRefused (403 `other-origin`)."""
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


def check_no_browser(headers: Headers) -> None:
    """Check that a GET which changes something comes from a program. Any page can make a browser send a GET, and over
    plain HTTP without a header that names the page. Raises RequestRefused (403 `other-origin`)."""
    for name, value in headers:
        if name in OF_BROWSERS or name == b"referer" or (name == b"user-agent" and value.lower().startswith(_BROWSER)):
            sentence = "this GET changes something, and browsers may not send it: a page of another place could"
            raise RequestRefused(403, "other-origin", sentence)
