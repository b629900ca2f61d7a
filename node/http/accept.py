"""The form of an answer that a client asks for by its Accept header. Pure.

Riak's forms are the usual ones and win ties, so that programs written for Riak get what they know. JSON is sent to a
client that names it.
"""

from __future__ import annotations

from typing import Final

from isthmus.node.http.responses import Headers

_JSON: Final = b"application/json"
_TEXT: Final = b"text/plain"
_MULTIPART: Final = b"multipart/mixed"


def accept_of(headers: Headers) -> bytes | None:
    """The Accept header of a request; None without one, the first one when repeated."""
    for name, value in headers:
        if name == b"accept":
            return value
    return None


def asks_for_json(accept: bytes | None) -> bool:
    """True when an Accept header names JSON, with no less weight than text and more than multipart, which Riak's
    clients send beside it. Wildcards over everything ask for nothing."""
    if accept is None or b"application/" not in accept.lower():
        return False
    weights = _weights(accept, (_JSON, _TEXT, _MULTIPART))
    json = weights[_JSON]
    return json > 0 and json >= weights[_TEXT] and json > weights[_MULTIPART]


def prefers(accept: bytes | None, wanted: bytes, usual: bytes) -> bool:
    """True when an Accept header gives `wanted` a higher weight than `usual`, which wins ties and wildcards."""
    family = wanted.partition(b"/")[0]
    if accept is None or family not in accept.lower():
        return False
    weights = _weights(accept, (wanted, usual))
    return weights[wanted] > max(0.0, weights[usual])


def _weights(accept: bytes, kinds: tuple[bytes, ...]) -> dict[bytes, float]:
    """The weight of each media type of `kinds`, -1 where the header names neither it nor its family (`text/*`)."""
    weights = dict.fromkeys(kinds, -1.0)
    for part in accept.lower().split(b","):
        named, *parameters = (p.strip() for p in part.split(b";"))
        for kind in kinds:
            if named in (kind, kind.partition(b"/")[0] + b"/*"):
                weights[kind] = max(weights[kind], _weight(parameters))
    return weights


def _weight(parameters: list[bytes]) -> float:
    for parameter in parameters:
        if parameter.startswith(b"q="):
            try:
                return min(1.0, max(0.0, float(parameter[2:])))
            except ValueError:
                return 0.0
    return 1.0
