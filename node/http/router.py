"""Paths and query strings: from raw bytes to decoded parts and a handler.

Works on the path as it was sent, so that a `%2F` inside a key stays inside the key. A `+` is a space in paths, too, as
in Riak, whose clients write it so. Decoding is strict: a `%` without two hex digits is refused, never passed through.
Routes are few and looked up by their number of segments; `ClientApi` recognizes object paths, which are hot, before it
asks the router.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from isthmus.config.text import no_such
from isthmus.node.http.responses import RequestRefused

Handler = TypeVar("Handler")

QUERY_PARAMETERS_MAX: Final = 64
"""Most parameters of one query string; Riak's clients send at most a dozen. More are refused with 400."""

_HEX: Final = {
    bytes((high, low)): bytes((int(chr(high) + chr(low), 16),))
    for high in b"0123456789abcdefABCDEF"
    for low in b"0123456789abcdefABCDEF"
}


def decode_segment(segment: bytes) -> bytes:
    """A path segment without its percent-encoding; `+` is a space. Raises RequestRefused (400)."""
    if b"+" in segment:
        segment = segment.replace(b"+", b" ")
    if b"%" not in segment:
        return segment
    first, *rest = segment.split(b"%")
    parts = [first]
    for part in rest:
        byte = _HEX.get(part[:2])
        if byte is None:
            raise RequestRefused(
                400, "bad-percent-encoding", f"'%{part[:2].decode('latin-1')}' in the URL is not % and two hex digits"
            )
        parts.append(byte)
        parts.append(part[2:])
    return b"".join(parts)


def encode_segment(raw: bytes) -> bytes:
    """`raw` as one path segment: everything but unreserved characters percent-encoded (RFC 3986 2.3)."""
    return raw if raw.isalnum() else b"".join(map(_ENCODED.__getitem__, raw))


_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ENCODED: Final = [bytes((byte,)) if byte in _UNRESERVED else b"%%%02X" % byte for byte in range(256)]


OF_BYTES: Final = frozenset({"prefix"})
"""Parameters whose values are any bytes, as names are: what is not UTF-8 in them is escaped by surrogates."""


def parse_query(query: bytes) -> dict[str, str]:
    """Parameters of a query string; `+` is a space. Raises RequestRefused (400) for one that is there twice, since it
    is not clear which is meant."""
    if not query:
        return {}
    parameters = query.split(b"&", QUERY_PARAMETERS_MAX)
    if len(parameters) > QUERY_PARAMETERS_MAX:
        raise RequestRefused(400, "bad-query", f"more than {QUERY_PARAMETERS_MAX} query parameters")
    result: dict[str, str] = {}
    for parameter in parameters:
        if not parameter:
            continue
        encoded, _, value = parameter.partition(b"=")
        try:
            name = decode_segment(encoded).decode()
            text = decode_segment(value).decode(errors="surrogateescape" if name in OF_BYTES else "strict")
        except UnicodeDecodeError:
            raise RequestRefused(400, "bad-query", "a query parameter is not UTF-8") from None
        if name in result:
            raise RequestRefused(400, "bad-query", f"{name[:40]} is there more than once: send it once")
        result[name] = text
    return result


NAME_SHOWN_MAX: Final = 80
"""Characters of an unknown name that are compared with the known ones, and shown."""


def check_parameters(given: Collection[str], known: Collection[str], where: str) -> None:
    """Refuse parameters that a request does not have. `where` names the request. Raises RequestRefused (400) with the
    nearest name, or all known ones."""
    for name in given:
        if name not in known:
            noun = f"query parameter of {where}"
            raise RequestRefused(400, "bad-query", no_such(noun, name[:NAME_SHOWN_MAX], sorted(known)))


class Match(NamedTuple, Generic[Handler]):
    """A handler, its route's pattern, and the decoded values of the path's `{names}`."""

    handler: Handler
    pattern: str
    params: dict[str, bytes]


class _Route(NamedTuple, Generic[Handler]):
    pattern: str
    literals: tuple[tuple[int, bytes], ...]
    names: tuple[tuple[int, str], ...]
    handlers: dict[str, Handler]


class Router(Generic[Handler]):
    """Routes by pattern: `/queues/{queue}/fetch`. Of the patterns that fit, the one with most literal parts wins."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[_Route[Handler]]] = {}

    def add(self, methods: str | Sequence[str], pattern: str, handler: Handler) -> None:
        """Add `handler` for `methods` ("GET", or several) on `pattern`; a GET also answers HEAD."""
        parts = pattern.encode("ascii").split(b"/")
        assert parts[0] == b""
        literals = tuple((i, p) for i, p in enumerate(parts) if not p.startswith(b"{"))
        names = tuple((i, p[1:-1].decode()) for i, p in enumerate(parts) if p.startswith(b"{"))
        routes = self._by_length.setdefault(len(parts), [])
        for route in routes:
            if route.literals == literals and route.names == names:
                break
        else:
            route = _Route(pattern, literals, names, {})
            routes.append(route)
            routes.sort(key=lambda each: len(each.names))
        for method in (methods,) if isinstance(methods, str) else methods:
            assert method not in route.handlers, f"two handlers for {method} {pattern}"
            route.handlers[method] = handler

    def get(self, pattern: str) -> Callable[[Handler], Handler]:
        """`add("GET", pattern, ...)` as a decorator."""
        return self._decorator("GET", pattern)

    def post(self, pattern: str) -> Callable[[Handler], Handler]:
        """`add("POST", pattern, ...)` as a decorator."""
        return self._decorator("POST", pattern)

    def _decorator(self, method: str, pattern: str) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.add(method, pattern, handler)
            return handler

        return add

    def routes(self) -> Iterator[tuple[str, str, Handler]]:
        """(pattern, method, handler) of all routes."""
        for routes in self._by_length.values():
            for route in routes:
                for method, handler in route.handlers.items():
                    yield route.pattern, method, handler

    def match(self, method: str, raw_path: bytes) -> Match[Handler]:
        """The handler of a request.

        Raises RequestRefused: 404 for an unknown path, 405 with Allow for a method that the path does not answer, 400
        for bad percent-encoding.
        """
        parts = raw_path.split(b"/")
        for route in self._by_length.get(len(parts), ()):
            if all(parts[i] == literal for i, literal in route.literals):
                break
        else:
            raise unknown_path(raw_path)
        handler = route.handlers.get(method)
        if handler is None and method == "HEAD":
            handler = route.handlers.get("GET")
        if handler is None:
            raise method_not_allowed(method, route.handlers)
        return Match(handler, route.pattern, {name: decode_segment(parts[i]) for i, name in route.names})


def unknown_path(raw_path: bytes) -> RequestRefused:
    """The 404 of an unknown path (an absent key has other headers)."""
    shown = raw_path[:200].decode("ascii", "backslashreplace")
    return RequestRefused(
        404,
        "unknown-path",
        f"nothing answers at {shown}; GET /openapi.json has all paths; a '/' inside a bucket or key is written %2F",
    )


def method_not_allowed(method: str, allowed: Sequence[str] | dict[str, Handler]) -> RequestRefused:
    """The 405 of a path that answers other methods."""
    names = sorted({*allowed, "HEAD"} if "GET" in allowed else allowed)
    text = ", ".join(names)
    return RequestRefused(
        405, "method-not-allowed", f"{method} is not answered here, only {text}", [(b"allow", text.encode())]
    )
